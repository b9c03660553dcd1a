-- Admits a member: from now on it counts, and its numbers are above a floor. Only the run that was
-- meant: one that restarted since may have forgotten more. KEYS: member. ARGV: run floor
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if run ~= ARGV[1] then return {'N'} end
local had = tonumber(redis.call('HGET', KEYS[1], 'floor') or '0')
local floor = string.format('%.0f', math.max(had, tonumber(ARGV[2])))
redis.call('HSET', KEYS[1], 'layout', '1', 'run', run, 'floor', floor)
return {'Y', floor}
