-- Takes it away and wakes everybody. KEYS: hash. ARGV: channel payload
local had = redis.call('DEL', KEYS[1])
if had == 1 then redis.call('PUBLISH', ARGV[1], ARGV[2]) end
return {'D', string.format('%.0f', had)}
