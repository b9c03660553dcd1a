-- A write that carries a token of 20 digits: refused when a greater one was seen.
local seen = redis.call('HGET', KEYS[1], 'fence')
if seen and seen > ARGV[2] then
  return 0
end
redis.call('HSET', KEYS[1], 'value', ARGV[1], 'fence', ARGV[2])
return 1
