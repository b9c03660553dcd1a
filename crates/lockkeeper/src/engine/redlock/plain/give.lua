-- Compare and delete: never by the name alone, nor what a later round wrote.
-- KEYS: key. ARGV: value length
local held, length = redis.call('GET', KEYS[1]), tonumber(ARGV[2])
if not is_same(held, ARGV[1], length) or round(held, length) > round(ARGV[1], length) then
  return {'N'}
end
redis.call('DEL', KEYS[1])
return {'D', '0'}
