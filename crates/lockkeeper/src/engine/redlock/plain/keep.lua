-- Extends our key, if it is there. KEYS: key. ARGV: value length ttl_ms run
local time, length = redis.call('TIME'), tonumber(ARGV[2])
local stamp = string.format('%.0f', time[1] * 1000000 + time[2])
local held = redis.call('GET', KEYS[1])
if not held then return {'N', stamp, '0'} end
if not is_same(held, ARGV[1], length) then
  return {'B', stamp, '0', string.format('%.0f', redis.call('PTTL', KEYS[1])),
    string.sub(held, 1, 1024)}
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'Y', stamp, '0', '1'}
