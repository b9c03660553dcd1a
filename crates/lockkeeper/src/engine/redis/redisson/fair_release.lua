-- RFairLock. ARGV: owner channel
local place = place_of(ARGV[1])
if place then
  redis.call('LREM', KEYS[2], 0, ARGV[1])
  move_up(place)
end
forget(ARGV[1])
local held = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
if held then redis.call('DEL', KEYS[1]) end
local head = head_of_line()
if head and redis.call('EXISTS', KEYS[1]) == 0 then
  wake(ARGV[2] .. ':' .. head, '0')
end
return {(held or place) and 'D' or 'X'}
