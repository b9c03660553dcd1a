-- RFairLock. KEYS: hash, queue, deadlines. ARGV: owner ttl_ms not_after_us how wait_ms
local owner, wait = ARGV[1], tonumber(ARGV[5])
if redis.call('HEXISTS', KEYS[1], owner) == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return granted()
end
local left = redis.call('PTTL', KEYS[1])
while true do
  local head = redis.call('LINDEX', KEYS[2], 0)
  if not head then break end
  local deadline = redis.call('ZSCORE', KEYS[3], head)
  -- A head without a deadline would never be skipped: Redisson stalls on it.
  if deadline and tonumber(deadline) > ms then break end
  redis.call('ZREM', KEYS[3], head)
  redis.call('LPOP', KEYS[2])
end
local head = redis.call('LINDEX', KEYS[2], 0)
if left == -2 and (not head or head == owner) then
  if head then
    redis.call('LPOP', KEYS[2])
    redis.call('ZREM', KEYS[3], owner)
  end
  redis.call('HSET', KEYS[1], owner, '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return granted()
end
if ARGV[4] ~= 'try' then
  if not redis.call('ZSCORE', KEYS[3], owner) then redis.call('RPUSH', KEYS[2], owner) end
  -- A sign of life each time we ask; the dead are skipped soon.
  redis.call('ZADD', KEYS[3], ms + math.max(left, 0) + wait, owner)
end
return busy(left, owner_of(KEYS[1]))
