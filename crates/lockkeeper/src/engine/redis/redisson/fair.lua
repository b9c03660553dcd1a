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
if ARGV[4] ~= 'try' then stand(owner, left, wait) end
return busy(left, owner_of(KEYS[1]))
