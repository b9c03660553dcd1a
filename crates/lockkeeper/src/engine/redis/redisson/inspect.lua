-- Who holds it: identity, mode, count, what is left of the lease in milliseconds. KEYS: hash
-- The name is the key whatever its type: a string is a semaphore or a latch, and no lock.
if redis.call('TYPE', KEYS[1]).ok == 'string' then return {'', {}} end
local rest = string.format('%.0f', redis.call('PTTL', KEYS[1]))
local all, holders, mode = redis.call('HGETALL', KEYS[1]), {}, 'x'
for i = 1, #all, 2 do
  if all[i] == 'mode' and all[i + 1] == 'read' then mode = 's' end
end
for i = 1, #all, 2 do
  if all[i] ~= 'mode' then holders[#holders + 1] = {all[i], mode, '1', rest} end
end
return {'', holders}
