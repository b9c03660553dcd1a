-- What take.lua does, for the locks of several names at once.
-- KEYS: last of each, record of each, line of each. ARGV: ttl_ms; not_after in ticks, the earliest
-- of all; then the place of each, a space behind it.
-- Answers the number, a letter for each, and the time. G: granted. T: it came late. W: something is
-- in the way, and acquire.lua is asked.
local names = #ARGV - 2
local time = redis.call('TIME')
local tick = (time[1] - 1767225600) * 62500 + (time[2] - time[2] % 16) / 16
local number = string.format('%.0f', tick)
-- A key of another type is shown as none.
local kept = redis.call('MGET', unpack(KEYS, 1, names))
local late = tick > tonumber(ARGV[2])
local said = {}
for i = 1, names do
  local last = kept[i]
  local before = last and not string.find(last, '%D') and tonumber(last)
    or not last and redis.pcall('EXISTS', KEYS[i], KEYS[i + 2 * names]) == 0 and 0
  said[i] = 'W'
  if late then
    said[i] = 'T'
  elseif before and tick > before then
    -- What refuses it here, be it to everybody, is for its own script to tell: that one may have
    -- nothing to write.
    local set = redis.pcall('SET', KEYS[i + names], ARGV[i + 2] .. number, 'PX', ARGV[1], 'NX')
    if set and set.ok then
      -- MSET would take away the time to live of all of them.
      if tick % 4294967296 < tick - before then
        set = redis.pcall('SET', KEYS[i], number, 'EX', '604800')
      else
        set = redis.pcall('SET', KEYS[i], number, 'KEEPTTL')
      end
      -- Where `last` was not written acquire.lua finds its claim's record, and makes up for it.
      if set.ok then said[i] = 'G' end
    end
  end
end
return {number, table.concat(said), time[1] .. string.format('%06d', time[2])}
