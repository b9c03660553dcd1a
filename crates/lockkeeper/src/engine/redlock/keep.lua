-- Extends our record, if it is there. KEYS: record. ARGV: claim ttl_ms
local time = redis.call('TIME')
local stamp = string.format('%.0f', time[1] * 1000000 + time[2])
local held = read(KEYS[1])
if not held then return {'N', stamp} end
if held.claim ~= ARGV[1] then
  return {'B', stamp, string.format('%.0f', redis.call('PTTL', KEYS[1])), held.text}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'Y', stamp}
