-- Most often nobody has the name, and nobody waits for it: that is told here, in front of what is
-- only for the others. As take, which has the same keys and arguments.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp, claim = exact(now), ARGV[1]
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[4]) then return {'T', stamp} end
local is_free = redis.call('EXISTS', KEYS[1], KEYS[4], KEYS[5], KEYS[7]) == 0
local last, counts, top, ahead = known(KEYS[2], KEYS[3], ARGV[9], now, ARGV[10])
local round, number, since = ARGV[2], given(ARGV[6], last, now), stamp
local function take()
  local kept = exact(number)
  redis.call('SET', KEYS[1], '1 ' .. claim .. ' ' .. ARGV[7] .. ' ' .. round .. ' ' .. kept .. ' '
    .. since .. ' ' .. ARGV[3] .. ' ' .. ARGV[5], 'PX', ARGV[3])
  if number > last then keep(KEYS[2], KEYS[3], number, top, ahead, now) end
  return {'Y', stamp, kept, counts}
end
if is_free then return take() end
