-- Who has it, and for how long still. KEYS: records
local found = {}
for i = 1, #KEYS do
  local text = redis.call('GET', KEYS[i])
  found[i] = text and {text, string.format('%.0f', redis.call('PTTL', KEYS[i]))} or {}
end
return found
