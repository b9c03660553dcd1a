-- Takes it away and wakes everybody. KEYS: hash, and the queue of an RFairLock. ARGV: channel
-- payload
local had = redis.call('DEL', KEYS[1])
if had == 1 then
  redis.call('PUBLISH', ARGV[1], ARGV[2])
  local head = KEYS[2] and redis.call('LINDEX', KEYS[2], 0)
  if head then redis.call('PUBLISH', ARGV[1] .. ':' .. head, ARGV[2]) end
end
return {'D', string.format('%.0f', had)}
