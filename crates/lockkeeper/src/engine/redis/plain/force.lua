-- Takes it away, if its value is still this one. KEYS: key. ARGV: value, unless any will do.
if ARGV[1] and redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'D', '0'} end
return {'D', string.format('%.0f', redis.call('DEL', KEYS[1]))}
