-- RPermitExpirableSemaphore, one hold a call. KEYS: permits. ARGV: ttl_ms ids
local time = redis.call('TIME')
local until_ms = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1])
local function bytes(hex) return (string.gsub(hex, '%x%x', function(pair) return string.char(tonumber(pair, 16)) end)) end
for i = 2, #ARGV do
  if not redis.call('ZSCORE', KEYS[1], bytes(ARGV[i])) then return {'X'} end
end
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', until_ms, bytes(ARGV[i])) end
return {'D'}
