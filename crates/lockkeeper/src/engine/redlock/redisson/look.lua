-- Who has it, and for how long still. KEYS: hashes
local found = {}
for i = 1, #KEYS do
  local owner, rest = owner_of(KEYS[i]), string.format('%.0f', redis.call('PTTL', KEYS[i]))
  found[i] = owner and {{string.sub(owner, 1, 1024), rest}} or {}
end
return found
