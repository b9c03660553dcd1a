-- Who has it, and for how long still. KEYS: keys. A huge value is nobody: its beginning will do.
local found = {}
for i = 1, #KEYS do
  local value, rest = redis.call('GETRANGE', KEYS[i], 0, 1023), redis.call('PTTL', KEYS[i])
  found[i] = rest ~= -2 and {{value, string.format('%.0f', rest)}} or {}
end
return found
