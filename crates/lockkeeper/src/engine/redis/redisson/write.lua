-- The write half of RReadWriteLock. KEYS: hash. ARGV: owner field ttl_ms not_after_us how
local ours = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
if ours or redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'mode', 'write')
  redis.call('HSET', KEYS[1], ARGV[1], '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return granted()
end
return busy(redis.call('PTTL', KEYS[1]), owner_of(KEYS[1]))
