-- SET key value NX PX ttl, as everybody does it; and sent twice it holds once (R3). KEYS: key. ARGV: value ttl_ms not_after_us how
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.0f', now)
if now > tonumber(ARGV[3]) then return {'T', stamp} end
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {'G', stamp, '', ARGV[2]}
end
if not held then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {'G', stamp, '', ARGV[2]}
end
return {'B', stamp, string.format('%.0f', redis.call('PTTL', KEYS[1]))}
