-- What RFairLock.tryLock does: the lock if it is free and nobody who lives is before us, else a
-- place in this member's queue. Asked for twice it is there once (R3). The place is the claim's,
-- whatever round asks; the hash has the round.
-- KEYS: hash, queue, deadlines, signs of life. ARGV: owner length ttl_ms not_after_us place wait_ms
-- channel run; without a place it does not wait.
local owner, length, place = ARGV[1], tonumber(ARGV[2]), ARGV[5]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.0f', now)
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[4]) then return {'T', stamp} end
local held, left = owner_of(KEYS[1]), redis.call('PTTL', KEYS[1])
local head = head_of_line(place)
if is_same(held, owner, length) or not held and (not head or head == place) then
  -- A late request of an earlier round takes nothing back: see fair_give.
  if not held or round(held, length) < round(owner, length) then
    if held then redis.call('HDEL', KEYS[1], held) end
    if head == place then
      redis.call('LPOP', KEYS[2])
      forget(place)
      move_up(0)
    end
    redis.call('HSET', KEYS[1], owner, '1')
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {'Y', stamp, '0', '1'}
end
if place ~= '' then stand(place, left, tonumber(ARGV[6])) end
if not held then
  -- It is free for somebody who may not have heard that.
  redis.pcall('PUBLISH', ARGV[7] .. ':' .. head, '0')
  held, left = head, tonumber(redis.call('ZSCORE', KEYS[4], head) or
    redis.call('ZSCORE', KEYS[3], head)) - ms
end
return {'B', stamp, '0', string.format('%.0f', left), string.sub(held, 1, 1024)}
