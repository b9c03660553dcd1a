-- What take.lua and the beginning of give.lua do, for many names at once: first the releases, then
-- the requests. All of either are about different names; a request may be for a lock that a release
-- of the same call gives back.
-- KEYS: last of each request, last of each release, record of each release, record of each request,
-- line of each request. ARGV: how many requests; for each its three, as take.lua has them; for each
-- release its first two, as give.lua has them.
-- Answers the number, a letter for each in that order, and the time. G: granted. T: it came late.
-- D: given back. W: something is in the way, and nothing was done: its own script is asked.
local takes = tonumber(ARGV[1])
local gives = (#KEYS - 3 * takes) / 2
local records = takes + 2 * gives
local time = redis.call('TIME')
local tick = (time[1] - 1767225600) * 62500 + (time[2] - time[2] % 16) / 16
local number = string.format('%.0f', tick)
-- A key of another type is shown as none.
local kept = redis.call('MGET', unpack(KEYS, 1, records))
local said, free = {}, {}
for i = takes + 1, takes + gives do
  local begins, value = ARGV[takes + 2 * i], kept[i + gives]
  said[i] = 'W'
  if kept[i] == ARGV[takes + 2 * i + 1] and value
    and string.sub(value, 1, #begins) == begins then
    free[#free + 1] = KEYS[i + gives]
    said[i] = 'D'
  end
end
-- A server that refuses this one refuses the whole, before anything was done.
if free[1] then redis.call('DEL', unpack(free)) end
for i = 1, takes do
  local at, last = 3 * i - 1, kept[i]
  local before = last and not string.find(last, '%D') and tonumber(last)
    or not last and redis.call('EXISTS', KEYS[i], KEYS[i + records + takes]) == 0 and 0
  said[i] = 'W'
  if tick > tonumber(ARGV[at + 2]) then
    said[i] = 'T'
  elseif before and tick > before then
    -- What refuses it here is for its own script to tell; the others have nothing to do with it.
    local set = redis.pcall('SET', KEYS[i + records], ARGV[at] .. number, 'PX', ARGV[at + 1], 'NX')
    if set and set.ok then
      said[i] = 'G'
      -- MSET would take away the time to live of all of them.
      if tick % 4294967296 < tick - before then
        redis.pcall('SET', KEYS[i], number, 'EX', '604800')
      else
        redis.pcall('SET', KEYS[i], number, 'KEEPTTL')
      end
    end
  end
end
return {number, table.concat(said), time[1] .. string.format('%06d', time[2])}
