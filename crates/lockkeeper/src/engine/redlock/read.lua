-- Writes the record of a reader, unless somebody else has the name alone; asked for twice it is
-- there once (R3). As take, which has the same keys and arguments.
-- KEYS: record last member readers line signs turn. ARGV: claim round ttl_ms not_after_us who
-- number first waits run max_ttl_ms
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = exact(now)
if now > tonumber(ARGV[4]) then return {'T', stamp} end
local round, since = tonumber(ARGV[2]), stamp
local last, counts, top, ahead = known(KEYS[2], KEYS[3], ARGV[9], now, ARGV[10])
local number, alone = given(ARGV[6], last, now), read(KEYS[1])
if alone then
  if ARGV[8] == '1' then
    local turn = redis.call('GET', KEYS[7])
    if not turn or turn == READERS_WAIT then
      -- It asks every 5 s at least.
      redis.call('SET', KEYS[7], READERS_WAIT, 'PX', 6000)
    end
  end
  return {'B', stamp, exact(last), exact(rest(KEYS[1], alone)), alone.text}
end
local held = reading(KEYS[4], ARGV[1], now)
if held then
  if held.round >= round then round, number = held.round, held.number end
  since = held.since
elseif is_full(KEYS[4], now) then
  error('LOCKKEEPER FULL ' .. KEYS[4], 0)
end
local text = table.concat(
  {'1', ARGV[1], ARGV[7], exact(round), exact(number), since, ARGV[3], ARGV[5]}, ' ')
write_reader(KEYS, ARGV[1], now + ARGV[3] * 1000, text, ARGV[3])
if number > last then keep(KEYS[2], KEYS[3], number, top, ahead, now) end
return {'Y', stamp, exact(number), counts}
