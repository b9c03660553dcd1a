-- The write half of RReadWriteLock. KEYS: hash. ARGV: owner field, channel
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return {'X'} end
if redis.call('HLEN', KEYS[1]) <= 1 then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'mode', 'read')
end
-- Also when the writer goes on reading: other readers may come in now.
return {'D', wake(ARGV[2], '1')}
