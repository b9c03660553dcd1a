-- Extends our hash, if it is there. KEYS: hash. ARGV: owner length ttl_ms run
local time, length = redis.call('TIME'), tonumber(ARGV[2])
local stamp, held = string.format('%.0f', time[1] * 1000000 + time[2]), owner_of(KEYS[1])
if not held then return {'N', stamp, '0'} end
if not is_same(held, ARGV[1], length) then
  return {'B', stamp, '0', string.format('%.0f', redis.call('PTTL', KEYS[1])),
    string.sub(held, 1, 1024)}
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'Y', stamp, '0', '1'}
