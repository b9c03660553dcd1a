-- RFairLock: who holds it and who stands in line. KEYS: hash, queue, deadlines
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local rest, holders, waiters = string.format('%.0f', redis.call('PTTL', KEYS[1])), {}, {}
for _, owner in ipairs(redis.call('HKEYS', KEYS[1])) do holders[#holders + 1] = {owner, 'x', '1', rest} end
for _, owner in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
  local deadline = redis.call('ZSCORE', KEYS[3], owner)
  if deadline and tonumber(deadline) > ms then waiters[#waiters + 1] = owner end
end
return {'', holders, waiters}
