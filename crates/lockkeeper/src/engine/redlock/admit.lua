-- Admits a member: from now on it counts, and its numbers are above a floor. Only the run that was
-- meant, and one that was not flushed since it told when it was met: it may have forgotten more.
-- And only once no lease lasts any more that it may have lost by then: whoever asks has waited for
-- the longest of anybody's that this member knows, before it asked for the floor.
-- KEYS: member. ARGV: run floor waited_ms met_us clock_skew_ms
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if run ~= ARGV[1] then return {'N'} end
local told = redis.call('HMGET', KEYS[1], 'floor', 'max_ttl', 'run', 'met', 'layout')
local layout = told[5] or '2'
if (tonumber(layout) or 3) > 2 then error('LOCKKEEPER NEWER ' .. layout .. ' 2', 0) end
local time = redis.call('TIME')
local now, waited = time[1] * 1000000 + time[2], tonumber(ARGV[3])
if tonumber(told[2] or '0') > waited then return {'N'} end
if told[3] ~= run or told[5] ~= '2' then
  if told[4] ~= run .. ' ' .. ARGV[4] then return {'N'} end
  if now - tonumber(ARGV[4]) < waited * 1000 then return {'N'} end
end
local kept, meant = number_of(told[1] or '0', KEYS[1], now), number_of(ARGV[2], KEYS[1], now)
local floor = exact(math.max(kept, meant))
redis.call('HSET', KEYS[1], 'layout', '2', 'run', run, 'floor', floor,
  'max_ttl', string.format('%.0f', waited), 'clock_skew', ARGV[5])
redis.call('HDEL', KEYS[1], 'met')
return {'Y', floor}
