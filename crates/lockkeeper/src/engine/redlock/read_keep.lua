-- Extends the record of a reader, if it is there, and lets it have our number. Others read beside
-- it, whose numbers may be greater: it has to be above those that were told before it came, and it
-- came with one that is.
-- KEYS: record last member readers. ARGV: claim ttl_ms number held run
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp, number = exact(now), tonumber(ARGV[3])
local last, counts, top, ahead = known(KEYS[2], KEYS[3], ARGV[5], now)
local held = reading(KEYS[4], ARGV[1], now)
if not held then
  local alone = read(KEYS[1])
  if not alone then return {'N', stamp, exact(last)} end
  return {'B', stamp, exact(last), exact(rest(KEYS[1], alone)), alone.text}
end
number = math.max(number, held.number)
local first = ARGV[4] == '1' and HELD or held.first
local text = table.concat({'1', held.claim, first, exact(held.round), exact(number),
  held.since, ARGV[2], held.who}, ' ')
write_reader(KEYS, ARGV[1], now + ARGV[2] * 1000, text, ARGV[2])
if number > last then
  keep(KEYS[2], KEYS[3], number, top, ahead, now)
else
  keep_on(KEYS[2], KEYS[3], last, ahead, now)
end
return {'Y', stamp, exact(number), counts}
