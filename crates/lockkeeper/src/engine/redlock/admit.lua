-- Admits a member: from now on it counts, its numbers are above a floor, and whoever goes by
-- another max_ttl is refused. Only the run that was meant: one that restarted since may have
-- forgotten more.
-- KEYS: member. ARGV: run floor max_ttl_ms
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if run ~= ARGV[1] then return {'N'} end
local told = redis.call('HMGET', KEYS[1], 'floor', 'max_ttl')
if told[2] and told[2] ~= ARGV[3] then return {'N'} end
local floor = string.format('%.0f', math.max(tonumber(told[1] or '0'), tonumber(ARGV[2])))
redis.call('HSET', KEYS[1], 'layout', '1', 'run', run, 'floor', floor, 'max_ttl', ARGV[3])
return {'Y', floor}
