-- What take_free.lua does, for the locks of several names at once.
-- KEYS: member; record, last, readers, line, turn of each, all records first.
-- ARGV: ttl_ms run max_ttl_ms; not_after_us, the earliest of all; then claim round who number first
-- of each.
-- Answers whether the member counts, a letter for each, and the time. Y: written with the number
-- that it proposed. T: it came late. W: something is in the way, and take.lua is asked.
local names = (#KEYS - 1) / 5
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = exact(now)
if now > tonumber(ARGV[4]) then return {'0', string.rep('T', names), stamp} end
local floor, counts, top, ahead, base = about(KEYS[1], ARGV[2], now, ARGV[3])
local kept = redis.call('MGET', unpack(KEYS, names + 2, 2 * names + 1))
-- One command for all where all are free, as they are most often.
local free = redis.call('EXISTS', unpack(KEYS, 2 * names + 2)) == 0
local fastest, highest = tick(now) + 2 * SKEW, 0
local said, behind = {}, ' ' .. stamp .. ' ' .. ARGV[1] .. ' '
for i = 1, names do
  local record, last, text = KEYS[1 + i], KEYS[1 + names + i], kept[i]
  -- A key of another type is shown as none.
  local before = text and not string.find(text, '%D') and tonumber(text)
    or not text and redis.call('EXISTS', last) == 0 and base
  local number = tonumber(ARGV[5 * i + 3])
  said[i] = 'W'
  if before and number > before and number > floor and number <= fastest and (free
    or redis.call('EXISTS', KEYS[1 + 2 * names + i], KEYS[1 + 3 * names + i],
      KEYS[1 + 4 * names + i]) == 0) then
    local proposed = exact(number)
    -- Nothing is written where somebody has it, also of those in this call.
    if redis.call('SET', record, '1 ' .. ARGV[5 * i] .. ' ' .. ARGV[5 * i + 4] .. ' '
      .. ARGV[5 * i + 1] .. ' ' .. proposed .. behind .. ARGV[5 * i + 2],
      'PX', ARGV[1], 'NX') then
      redis.call('SET', last, proposed, 'EX', 604800)
      said[i], highest = 'Y', math.max(highest, number)
    end
  end
end
if highest > 0 then keep_top(KEYS[1], highest, top, ahead, now) end
return {counts, table.concat(said), stamp}
