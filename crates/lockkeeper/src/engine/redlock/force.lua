-- Takes it away from one of these claims, or from anybody if none is named.
-- KEYS: record. ARGV: channel claims…
local text = redis.call('GET', KEYS[1])
if not text then return {'D', '0'} end
if ARGV[2] then
  local claim, meant = string.match(text, '^%d+ (%x+) '), false
  for i = 2, #ARGV do meant = meant or ARGV[i] == claim end
  if not meant then return {'D', '0'} end
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], 'force')
return {'D', '1'}
