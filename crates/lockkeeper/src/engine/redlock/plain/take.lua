-- SET key value NX PX ttl, as everybody does it; asked for twice it is there once (R3).
-- KEYS: key. ARGV: value length ttl_ms not_after_us run
local time, length = redis.call('TIME'), tonumber(ARGV[2])
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.0f', now)
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[4]) then return {'T', stamp} end
local held = redis.call('GET', KEYS[1])
if held and not is_same(held, ARGV[1], length) then
  return {'B', stamp, '0', string.format('%.0f', redis.call('PTTL', KEYS[1])),
    string.sub(held, 1, 1024)}
end
local value = ARGV[1]
-- A late request of an earlier round takes nothing back: see give.
if held and round(held, length) > round(value, length) then value = held end
redis.call('SET', KEYS[1], value, 'PX', ARGV[3])
return {'Y', stamp, '0', '1'}
