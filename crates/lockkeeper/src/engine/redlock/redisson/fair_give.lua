-- Deletes our hash, never by the name alone, nor what a later round wrote, and takes our place out
-- of the queue; whoever is first then is told, as RFairLock.unlock does. With a wait we stand at
-- the end of the queue again, and nobody is told: waiters would wake each other without end.
-- KEYS: hash, queue, deadlines, signs of life. ARGV: owner length place channel [wait_ms]
local length, place, held = tonumber(ARGV[2]), ARGV[3], owner_of(KEYS[1])
local ours = is_same(held, ARGV[1], length) and round(held, length) <= round(ARGV[1], length)
if ours then redis.call('DEL', KEYS[1]) end
local gave = {ours and 'D' or 'N', '0'}
if ARGV[5] then
  if ours then stand(place, 0, tonumber(ARGV[5])) end
  return gave
end
local at = place_of(place)
if at then
  redis.call('LREM', KEYS[2], 0, place)
  move_up(at)
end
forget(place)
local head = (ours or not held) and head_of_line()
-- Where this user may not publish, waiters look by themselves.
if head then redis.pcall('PUBLISH', ARGV[4] .. ':' .. head, '0') end
return gave
