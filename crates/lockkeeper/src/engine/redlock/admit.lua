-- Admits a member: from now on it counts, its numbers are above a floor, and whoever goes by
-- another max_ttl is refused. Only the run that was meant, and one that was not flushed since it
-- told when it was met: it may have forgotten more. And only max_ttl after that, unless it is among
-- the first members: it may have lost leases with its data while it ran.
-- KEYS: member. ARGV: run floor max_ttl_ms met_us first clock_skew_ms
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if run ~= ARGV[1] then return {'N'} end
local told = redis.call('HMGET', KEYS[1], 'floor', 'max_ttl', 'run', 'met')
if told[2] and told[2] ~= ARGV[3] then return {'N'} end
if told[3] ~= run then
  if told[4] ~= run .. ' ' .. ARGV[4] then return {'N'} end
  local time = redis.call('TIME')
  local ago = time[1] * 1000000 + time[2] - (tonumber(ARGV[4]) or 0)
  if ARGV[5] ~= '1' and ago < ARGV[3] * 1000 then return {'N'} end
end
local floor = string.format('%.0f', math.max(tonumber(told[1] or '0'), tonumber(ARGV[2])))
redis.call('HSET', KEYS[1], 'layout', '1', 'run', run, 'floor', floor, 'max_ttl', ARGV[3],
  'clock_skew', ARGV[6])
redis.call('HDEL', KEYS[1], 'met')
return {'Y', floor}
