-- RFairLock. ARGV: owner ttl_ms not_after_us how wait_ms
local owner, wait = ARGV[1], tonumber(ARGV[5])
if redis.call('HEXISTS', KEYS[1], owner) == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return granted()
end
local left, head = redis.call('PTTL', KEYS[1]), head_of_line(owner)
if left == -2 and (not head or head == owner) then
  if head then
    redis.call('LPOP', KEYS[2])
    forget(owner)
    move_up(0)
  end
  redis.call('HSET', KEYS[1], owner, '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return granted()
end
if ARGV[4] ~= 'try' then
  local until_free, ahead = ms + math.max(left, 0), place_of(owner)
  if not ahead then ahead = redis.call('RPUSH', KEYS[2], owner) - 1 end
  -- As late as Java would have it for this place, also after a long wait.
  local floor, deadline = until_free + (ahead + 1) * JAVA_WAIT, redis.call('ZSCORE', KEYS[3], owner)
  if not deadline or tonumber(deadline) < floor then redis.call('ZADD', KEYS[3], floor, owner) end
  redis.call('ZADD', KEYS[4], until_free + wait, owner)
  redis.call('PEXPIRE', KEYS[4], math.max(left, 0) + 12 * JAVA_WAIT)
end
return busy(left, owner_of(KEYS[1]))
