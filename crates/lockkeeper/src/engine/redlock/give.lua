-- Deletes our record, and tells the waiters, if a channel is named; never by the name alone. A
-- record that a later round wrote stays: this request was delayed, and its claim has asked again
-- since.
-- KEYS: record. ARGV: claim round [channel]
local held = read(KEYS[1])
if not held or held.claim ~= ARGV[1] or held.round > tonumber(ARGV[2]) then return {'N'} end
redis.call('DEL', KEYS[1])
if not ARGV[3] then return {'D', '0'} end
-- Where this user may not publish, waiters look by themselves.
local heard = redis.pcall('PUBLISH', ARGV[3], ARGV[1])
return {'D', type(heard) == 'number' and string.format('%.0f', heard) or '0'}
