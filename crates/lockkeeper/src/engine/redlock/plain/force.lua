-- Takes it away from whoever wrote one of these values, or from anybody if none is named.
-- KEYS: key. ARGV: length values…
local held, meant = redis.call('GET', KEYS[1]), #ARGV == 1
if not held then return {'D', '0'} end
for i = 2, #ARGV do meant = meant or is_same(held, ARGV[i], tonumber(ARGV[1])) end
if not meant then return {'D', '0'} end
redis.call('DEL', KEYS[1])
return {'D', '1'}
