-- Takes it away from one of these owners, or from anybody if none is named, and wakes everybody.
-- KEYS: hash, and the queue of an RFairLock. ARGV: channel length owners…
local held, meant = owner_of(KEYS[1]), #ARGV == 2
if not held then return {'D', '0'} end
for i = 3, #ARGV do meant = meant or is_same(held, ARGV[i], tonumber(ARGV[2])) end
if not meant then return {'D', '0'} end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '0')
local head = KEYS[2] and redis.call('LINDEX', KEYS[2], 0)
if head then redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0') end
return {'D', '1'}
