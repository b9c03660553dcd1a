-- What RLock.tryLock does; asked for twice it is there once (R3).
-- KEYS: hash. ARGV: owner length ttl_ms not_after_us run
local time, length = redis.call('TIME'), tonumber(ARGV[2])
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.0f', now)
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[4]) then return {'T', stamp} end
local held = owner_of(KEYS[1])
if held and not is_same(held, ARGV[1], length) then
  return {'B', stamp, '0', string.format('%.0f', redis.call('PTTL', KEYS[1])),
    string.sub(held, 1, 1024)}
end
-- A late request of an earlier round takes nothing back: see give.
if not held or round(held, length) < round(ARGV[1], length) then
  if held then redis.call('HDEL', KEYS[1], held) end
  redis.call('HSET', KEYS[1], ARGV[1], '1')
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'Y', stamp, '0', '1'}
