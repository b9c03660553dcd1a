-- The beginning of an acquire. KEYS: record, line, last, watch.
-- ARGV: claim mode count limit ttl_ms delay_ms since_us channel hold who not_after_us how fresh
-- Nobody holds it and nobody waits: four calls and done. Everything else goes on in settle.lua and
-- acquire.lua.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[11]) then return {'T', text(now)} end
local got = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4])
if ARGV[13] == '1' and not got[1] then
  local stored, flags = 0, ''
  if got[2] then
    local version, number, marks = string.match(got[2], '^(%d+):(%d+):(%a*)$')
    if version == '1' then stored, flags = tonumber(number), marks else flags = '?' end
  end
  local limit = tonumber(ARGV[4])
  local permits = ARGV[2] == 'p'
  if flags == '' and (not permits or stored == 0 or stored == limit) then
    local number = 0
    if permits then
      stored = limit
    else
      -- R7: above the last number, and not below the clock in units of 16 us since 2026.
      number = math.max(stored + 1, math.floor((now - 1767225600000000) / 16))
      stored = number
    end
    local holder = '1 ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. text(number) .. ' '
        .. ARGV[5] .. ' ' .. ARGV[6]
      .. ' ' .. text(now) .. ' ' .. ARGV[8] .. ' - ' .. ARGV[10]
    -- MGET shows a key of another type as none: that one must not be overwritten.
    local kept = '1:' .. text(stored) .. ':'
    local had = got[2]
    if not had and not redis.call('SET', KEYS[3], kept, 'EX', 604800, 'NX') then
      return redis.error_reply('LOCKKEEPER TYPE ' .. KEYS[3])
    end
    if not had then got[2] = kept end
    -- NX: a record of several holders is a hash, which MGET does not show.
    if redis.call('SET', KEYS[1], holder, 'PX', ARGV[5] + ARGV[6], 'NX') then
      if had then redis.call('SET', KEYS[3], kept, 'EX', 604800) end
      if got[3] then redis.pcall('PUBLISH', KEYS[4], KEYS[1]) end
      return {'G', text(now), text(number), ARGV[5]}
    end
  end
end
