-- The write half of RReadWriteLock. KEYS: hash. ARGV: owner field ttl_ms not_after_us how
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.0f', now)
if now > tonumber(ARGV[3]) then return {'T', stamp} end
local ours = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
if ours or redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'mode', 'write')
  redis.call('HSET', KEYS[1], ARGV[1], '1')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {'G', stamp, '', ARGV[2]}
end
return {'B', stamp, string.format('%.0f', redis.call('PTTL', KEYS[1]))}
