-- Deletes our hash, and tells the waiters as RLock.unlock does, if a channel is named; never by the
-- name alone, nor what a later round wrote.
-- KEYS: hash. ARGV: owner length [channel]
local held, length = owner_of(KEYS[1]), tonumber(ARGV[2])
if not is_same(held, ARGV[1], length) or round(held, length) > round(ARGV[1], length) then
  return {'N'}
end
redis.call('DEL', KEYS[1])
if not ARGV[3] then return {'D', '0'} end
-- Where this user may not publish, waiters look by themselves.
local heard = redis.pcall('PUBLISH', ARGV[3], '0')
return {'D', type(heard) == 'number' and string.format('%.0f', heard) or '0'}
