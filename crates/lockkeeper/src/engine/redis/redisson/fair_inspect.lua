-- RFairLock: who holds it and who stands in line.
-- The name is the key whatever its type: a string is a semaphore or a latch, and no lock.
if redis.call('TYPE', KEYS[1]).ok == 'string' then return {'', {}, {}} end
local rest, holders, waiters = string.format('%.0f', redis.call('PTTL', KEYS[1])), {}, {}
for _, owner in ipairs(redis.call('HKEYS', KEYS[1])) do
  holders[#holders + 1] = {owner, 'x', '1', rest}
end
for _, owner in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  if lives(owner) then waiters[#waiters + 1] = owner end
end
return {'', holders, waiters}
