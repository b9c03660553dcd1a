-- What a member tells of itself: its time, its run, whether it was admitted in it, the greatest
-- number that it kept or was to begin above, and the max_ttl of those who admitted it.
-- KEYS: member
local time = redis.call('TIME')
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
local told = redis.call('HMGET', KEYS[1], 'run', 'floor', 'top', 'layout', 'max_ttl')
if tonumber(told[4] or '1') ~= 1 then error('LOCKKEEPER NEWER ' .. told[4], 0) end
local top = math.max(tonumber(told[2] or '0'), tonumber(told[3] or '0'))
return {string.format('%.0f', time[1] * 1000000 + time[2]), run, told[1] == run and '1' or '0',
  string.format('%.0f', top), told[5] or ''}
