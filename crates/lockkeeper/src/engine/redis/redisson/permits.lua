-- Semaphores. KEYS: counter of what is free, permits that are out. ARGV: count limit not_after_us
-- how ttl_ms channel whole id
-- RPermitExpirableSemaphore keeps the permits itself, so that what is free and what is out make the
-- limit (`whole` is 1). RSemaphore keeps only the counter: ours are noted in a set of our own, so
-- that they end with their holder, and Java's are not known.
local count, limit, until_ms = tonumber(ARGV[1]), tonumber(ARGV[2]),
    string.format('%.0f', ms + ARGV[5])
local stored = redis.call('GET', KEYS[1])
local out = redis.call('ZCARD', KEYS[2])
-- A counter that is gone: what is out stays out.
local free = tonumber(stored or math.max(limit - out, 0))
if not free then return redis.error_reply('LOCKKEEPER CORRUPT ' .. KEYS[1]) end
local ids = permits_of(ARGV[8], count)
if not redis.call('ZSCORE', KEYS[2], ids[1]) then
  -- Who waits already goes on waiting when the limit is changed.
  if ARGV[7] == '1' and ARGV[4] ~= 'again' and stored and free + out ~= limit then
    return {'M', stamp, string.format('%.0f', free + out)}
  end
  if not stored then
    redis.call('SET', KEYS[1], free)
    wake(ARGV[6], string.format('%.0f', free))
  end
  local over = redis.call('ZRANGEBYSCORE', KEYS[2], 0, ms, 'LIMIT', 0, 1000)
  if #over > 0 then
    redis.call('ZREM', KEYS[2], unpack(over))
    free = redis.call('INCRBY', KEYS[1], #over)
    wake(ARGV[6], string.format('%.0f', free))
  end
  if free < count then
    local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    return busy(first[2] and math.max(first[2] - ms, 1) or -1, first[1] and digits(first[1]))
  end
  redis.call('DECRBY', KEYS[1], count)
end
put(KEYS[2], 'CH', until_ms, ids)
return granted()
