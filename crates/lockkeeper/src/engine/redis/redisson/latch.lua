-- RCountDownLatch. KEYS: counter, calls that were counted lately, so that a repeated one counts
-- once (R3).
-- ARGV: set, down or look, count or claim, channel
-- The name is the key whatever its type: a hash is a lock, and no latch.
if ARGV[1] == 'look' and redis.call('TYPE', KEYS[1]).ok == 'hash' then return {'', {}} end
local count = redis.call('GET', KEYS[1])
if count and not string.find(count, '^%-?%d+$') then
  return redis.error_reply('LOCKKEEPER CORRUPT ' .. KEYS[1])
end
if ARGV[1] == 'look' then return {count or '', {}} end
if ARGV[1] == 'set' then
  if count then return {'D', '0'} end
  redis.call('SET', KEYS[1], ARGV[2])
  wake(ARGV[3], '1')
  return {'D', '1'}
end
if not count then return {'D', '1'} end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if redis.call('ZSCORE', KEYS[2], ARGV[2]) then return {'D', '0'} end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 600000000)
redis.call('ZADD', KEYS[2], string.format('%.0f', now), ARGV[2])
redis.call('EXPIRE', KEYS[2], 600)
count = redis.call('DECR', KEYS[1])
if count <= 0 then
  redis.call('DEL', KEYS[1])
  wake(ARGV[3], '0')
  return {'D', '1'}
end
return {'D', '0'}
