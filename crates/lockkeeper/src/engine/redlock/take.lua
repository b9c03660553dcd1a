-- Writes our record unless another's is there, or somebody reads; asked for twice it is there once
-- (R3). It lasts a whole lease from now on, and has our number if that is the greatest, else the
-- next one.
-- KEYS: record last member readers. ARGV: claim round ttl_ms not_after_us who number first run
-- max_ttl_ms
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = exact(now)
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[4]) then return {'T', stamp} end
local held, round, since = read(KEYS[1]), tonumber(ARGV[2]), stamp
local last, counts, top = known(KEYS[2], KEYS[3], ARGV[8], now, ARGV[9])
local number = given(ARGV[6], last, now)
if held then
  if held.claim ~= ARGV[1] then
    return {'B', stamp, exact(last), exact(redis.call('PTTL', KEYS[1])), held.text}
  end
  -- A late request of an earlier round takes nothing back: see give.
  if held.round >= round then round, number = held.round, held.number end
  since = held.since
else
  local first, longest = first_reader(KEYS[4], now)
  if first then
    return {'B', stamp, exact(last), exact(first.rest), first.text, exact(longest)}
  end
end
local text = table.concat(
  {'1', ARGV[1], ARGV[7], exact(round), exact(number), since, ARGV[3], ARGV[5]}, ' ')
redis.call('SET', KEYS[1], text, 'PX', ARGV[3])
if number > last then keep(KEYS[2], KEYS[3], number, top, now) end
return {'Y', stamp, exact(number), counts}
