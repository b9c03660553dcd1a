-- The beginning of a release. KEYS: record, line, last, watch.
-- ARGV: how its record begins; what `last` says while nobody is in the way and no number was given
-- since (empty: the short way is not to be taken); until when to refuse a request of the claim that
-- is still on its way (0 or nothing: there is none); then nothing, or a place that stands in line
-- in the same message: place, not_after_us, how.
-- Gives 1: it is free; {'D', '', number}: free, and the place has it at once under this number; or
-- what the rest of this script says.
-- Nobody is in the way: three calls and done, or five. Several holders are a hash, which is no
-- text.
if ARGV[2] ~= '' and redis.pcall('GET', KEYS[3]) == ARGV[2] then
  local value = redis.pcall('GET', KEYS[1])
  if type(value) == 'string' and string.sub(value, 1, #ARGV[1]) == ARGV[1] then
    if not ARGV[4] then
      redis.call('DEL', KEYS[1])
      return 1
    end
    -- The place behind it gets the lock as from take.lua, where it wants no permits and no delay.
    local ttl = string.match(ARGV[4], '^2 %x+ 0 [sux] 1 (%d+) ')
    local time = redis.call('TIME')
    local tick = (time[1] - 1767225600) * 62500 + (time[2] - time[2] % 16) / 16
    local before = tonumber(ARGV[2])
    if ttl and tick > before and time[1] * 1000000 + time[2] <= tonumber(ARGV[5]) then
      local number = string.format('%.0f', tick)
      -- A full server writes only behind a DEL.
      if redis.pcall('SET', KEYS[1], ARGV[4] .. ' ' .. number, 'PX', ttl).ok then
        if tick % 4294967296 < tick - before then
          redis.call('SET', KEYS[3], number, 'EX', '604800')
        else
          redis.call('SET', KEYS[3], number, 'KEEPTTL')
        end
        return {'D', '', number}
      end
    end
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local got = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4])
