-- RPermitExpirableSemaphore. KEYS: counter, permits. ARGV: count limit ttl_ms not_after_us how channel ids (hexadecimal)
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp, ms = string.format('%.0f', now), math.floor(now / 1000)
if now > tonumber(ARGV[4]) then return {'T', stamp} end
local function bytes(hex) return (string.gsub(hex, '%x%x', function(pair) return string.char(tonumber(pair, 16)) end)) end
local count, until_ms = tonumber(ARGV[1]), string.format('%.0f', ms + ARGV[3])
local free = tonumber(redis.call('GET', KEYS[1]) or ARGV[2])
local ours = redis.call('ZSCORE', KEYS[2], bytes(ARGV[7]))
if not ours then
  redis.call('SET', KEYS[1], ARGV[2], 'NX')
  local over = redis.call('ZRANGEBYSCORE', KEYS[2], 0, ms, 'LIMIT', 0, 1000)
  if #over > 0 then
    redis.call('ZREM', KEYS[2], unpack(over))
    free = redis.call('INCRBY', KEYS[1], #over)
    redis.call('PUBLISH', ARGV[6], string.format('%.0f', free))
  end
  if free < count then
    local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
    return {'B', stamp, string.format('%.0f', first[2] and math.max(first[2] - ms, 1) or -1)}
  end
  redis.call('DECRBY', KEYS[1], count)
end
for i = 7, #ARGV do redis.call('ZADD', KEYS[2], until_ms, bytes(ARGV[i])) end
return {'G', stamp, '', ARGV[3]}
