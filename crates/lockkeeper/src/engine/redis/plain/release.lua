-- Compare and delete: never by the name alone. KEYS: key. ARGV: value
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return {'D'}
end
return {'X'}
