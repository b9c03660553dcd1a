-- The short way to permits: nobody holds any, the limit is the same, and nobody is in the way.
-- KEYS: record, last, line. ARGV: the place, a space behind it; ttl_ms; not_after_us; what `last`
-- says.
-- Where anything is in the way it changes nothing, and acquire.lua is asked.
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
if tonumber(now) > tonumber(ARGV[3]) then return {'T', now} end
local kept = redis.call('GET', KEYS[2])
if (kept == ARGV[4] or not kept and redis.call('EXISTS', KEYS[3]) == 0)
    and redis.call('SET', KEYS[1], ARGV[1] .. '0 ' .. now .. ' -', 'PX', ARGV[2], 'NX') then
  redis.call('SET', KEYS[2], ARGV[4], 'EX', '604800')
  return {'G', now, '0', ARGV[2]}
end
return {'W', now}
