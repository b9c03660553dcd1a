-- Extends our record, if it is there, and gives it our number, if that is the greatest. Else it
-- says which number it could have. That of a hold stands before those of all contenders from then
-- on.
-- KEYS: record last member readers. ARGV: claim ttl_ms number held run
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = exact(now)
local held, number = read(KEYS[1]), tonumber(ARGV[3])
local last, counts, top, ahead = known(KEYS[2], KEYS[3], ARGV[5], now)
if not held then
  local first, longest = first_reader(KEYS[4], now)
  if not first then return {'N', stamp, exact(last)} end
  return {'B', stamp, exact(last), exact(first.rest), first.text, exact(longest)}
end
if held.claim ~= ARGV[1] then
  return {'B', stamp, exact(last), exact(rest(KEYS[1], held)), held.text}
end
-- The record says how long it lasts: whoever meets it cuts it to that.
local first = ARGV[4] == '1' and HELD or held.first
local function write(kept)
  local text = table.concat({'1', held.claim, first, exact(held.round), exact(kept),
    held.since, ARGV[2], held.who}, ' ')
  redis.call('SET', KEYS[1], text, 'PX', ARGV[2])
end
if number > last then
  write(number)
  keep(KEYS[2], KEYS[3], number, top, ahead, now)
  return {'Y', stamp, exact(number), counts}
end
if held.ttl == tonumber(ARGV[2]) and held.first == first then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  write(held.number)
end
keep_on(KEYS[2], KEYS[3], last, ahead, now)
return {'Y', stamp, exact(held.number == number and number or last + 1), counts}
