-- The short way to a lock: nobody holds it, and `last` is a bare number (forms.lua has them).
-- KEYS: record, last, line. ARGV: the place, a space behind it; ttl_ms; not_after in ticks.
-- Answers the number. Where anything is in the way it changes nothing, and acquire.lua is asked.
local time = redis.call('TIME')
-- R7: the clock in units of 16 us since 2026.
local tick = (time[1] - 1767225600) * 62500 + (time[2] - time[2] % 16) / 16
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if tick > tonumber(ARGV[3]) then return {'T', time[1] .. string.format('%06d', time[2])} end
local kept = redis.call('GET', KEYS[2])
-- None: never used, or forgotten, or lost alone, and then somebody may be in line. With a flag, or
-- of layout 1, it is no number; Lua takes `0x10` and `1e3` for one.
local before = kept and not string.find(kept, '%D') and tonumber(kept)
  or not kept and redis.call('EXISTS', KEYS[3]) == 0 and 0
if before and tick > before then
  local number = string.format('%.0f', tick)
  if redis.call('SET', KEYS[1], ARGV[1] .. number, 'PX', ARGV[2], 'NX') then
    -- Its life begins anew once in 19 hours at most: that is a second table for the server.
    if tick % 4294967296 < tick - before then
      redis.call('SET', KEYS[2], number, 'EX', '604800')
    else
      redis.call('SET', KEYS[2], number, 'KEEPTTL')
    end
    return number
  end
end
return {'W', time[1] .. string.format('%06d', time[2])}
