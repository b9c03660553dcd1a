-- A latch: record = version and count; line = the calls that were counted lately, so that a
-- repeated one counts once (R3).
-- KEYS: record, line, last, watch. ARGV: what (set, down), count or claim.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local value = redis.call('GET', KEYS[1])
local watched = redis.call('EXISTS', KEYS[4]) == 1
local count = 0
if value then
  local version, number = string.match(value, '^(%d+) (%d+)$')
  if version and tonumber(version) > 1 then
    return redis.error_reply('LOCKKEEPER NEWER ' .. version)
  end
  if version ~= '1' then return redis.error_reply('LOCKKEEPER CORRUPT ' .. KEYS[1]) end
  count = tonumber(number)
end
local done = '0'
if ARGV[1] == 'set' then
  if count == 0 then
    redis.call('SET', KEYS[1], '1 ' .. ARGV[2])
    done = '1'
  end
else
  if count > 0 and not redis.call('ZSCORE', KEYS[2], ARGV[2]) then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 600000000)
    redis.call('ZADD', KEYS[2], text(now), ARGV[2])
    redis.call('EXPIRE', KEYS[2], 600)
    count = count - 1
    if count == 0 then
      redis.call('DEL', KEYS[1])
    else
      redis.call('SET', KEYS[1], '1 ' .. text(count), 'KEEPTTL')
    end
  end
  if count == 0 then done = '1' end
end
if watched then redis.pcall('PUBLISH', KEYS[4], KEYS[1]) end
return {'D', text(now), done}
