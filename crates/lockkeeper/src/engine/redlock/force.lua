-- Takes it away from these claims, or from anybody if none is named.
-- KEYS: record readers line turn. ARGV: channel claims…
local gone, meant, read = 0, {}, '2 readers'
for i = 2, #ARGV do meant[ARGV[i]] = true end
local text = redis.call('GET', KEYS[1])
if text and text ~= read and (not ARGV[2] or meant[string.match(text, '^%d+ (%x+) ')]) then
  gone = redis.call('DEL', KEYS[1])
end
for _, claim in ipairs(redis.call('HKEYS', KEYS[2])) do
  if not ARGV[2] or meant[claim] then gone = gone + redis.call('HDEL', KEYS[2], claim) end
end
if text == read and redis.call('HLEN', KEYS[2]) == 0 then redis.call('DEL', KEYS[1]) end
if gone == 0 then return {'D', '0'} end
hand_on(KEYS[3], KEYS[4], ARGV[1], 'force')
return {'D', '1'}
