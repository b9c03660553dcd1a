-- The read half of RReadWriteLock. KEYS: hash, our timeout key. ARGV: owner ttl_ms not_after_us how
local mode = redis.call('HGET', KEYS[1], 'mode')
local left = redis.call('PTTL', KEYS[1])
-- A hash without a mode is an RLock's: Redisson would write into it, and both would hold.
if mode == 'read' or not mode and left == -2 then
  redis.call('HSET', KEYS[1], 'mode', 'read')
  redis.call('HSET', KEYS[1], ARGV[1], '1')
  redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], math.max(left, tonumber(ARGV[2])))
  return granted()
end
return busy(left, owner_of(KEYS[1]))
