-- Takes it away and wakes everybody, if nobody else holds it by now. KEYS: hash, and the queue of
-- an RFairLock. ARGV: channel payload, the owners, unless any will do.
if ARGV[3] then
  local meant = {mode = true}
  for i = 3, #ARGV do meant[ARGV[i]] = true end
  for _, owner in ipairs(redis.call('HKEYS', KEYS[1])) do
    if not meant[owner] then return {'D', '0'} end
  end
end
local had = redis.call('DEL', KEYS[1])
if had == 1 then
  wake(ARGV[1], ARGV[2])
  local head = KEYS[2] and redis.call('LINDEX', KEYS[2], 0)
  if head then wake(ARGV[1] .. ':' .. head, ARGV[2]) end
end
return {'D', string.format('%.0f', had)}
