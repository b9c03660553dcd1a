-- What a member tells of itself: its time, its run, whether it was admitted in it, a number that is
-- not below any that it kept or was to begin above, the longest lease of those that asked for one,
-- and, if it was not admitted, when that was noticed first. It may have lost its data just before
-- that.
-- KEYS: member
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
local told = redis.call('HMGET', KEYS[1], 'run', 'floor', 'top', 'layout', 'max_ttl', 'met')
local layout = told[4] or '2'
if (tonumber(layout) or 3) > 2 then error('LOCKKEEPER NEWER ' .. layout .. ' 2', 0) end
local floor = number_of(told[2] or '0', KEYS[1], now)
local top = math.max(floor, number_of(told[3] or '0', KEYS[1], now))
local admitted, met = told[1] == run and told[4] == '2', ''
if not admitted then
  local of, since = string.match(told[6] or '', '^(%x*) (%d+)$')
  met = string.format('%.0f', now)
  -- Met later than now: the clock was set back, and says no more how long ago that was.
  if of == run and tonumber(since) <= now then
    met = since
  else
    redis.call('HSET', KEYS[1], 'met', run .. ' ' .. met)
  end
end
return {string.format('%.0f', now), run, admitted and '1' or '0', string.format('%.0f', top),
  told[5] or '0', met}
