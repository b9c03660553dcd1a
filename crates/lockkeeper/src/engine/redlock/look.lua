-- Who has it, and for how long still; readers are marked. KEYS: record and readers of each name
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local found = {}
for i = 1, #KEYS, 2 do
  local text, those = redis.call('GET', KEYS[i]), {}
  if text and text ~= '2 readers' then
    those[1] = {text, string.format('%.0f', redis.call('PTTL', KEYS[i]))}
  end
  local readers = redis.call('HVALS', KEYS[i + 1])
  for n = 1, #readers do
    local ends, one = string.match(readers[n], '^(%d+) (.*)$')
    if not ends then
      those[#those + 1] = {readers[n], '0', 's'}
    elseif tonumber(ends) > now then
      those[#those + 1] = {one, string.format('%.0f', (ends - now) / 1000), 's'}
    end
  end
  found[#found + 1] = those
end
return found
