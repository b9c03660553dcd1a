-- Writes our record unless another's is there, or somebody reads, or it is another's turn; asked
-- for twice it is there once (R3). It lasts a whole lease from now on, and has our number if that
-- is the greatest, else the next one.
-- KEYS: record last member readers line turn.
-- ARGV: claim round ttl_ms not_after_us who number first waits run max_ttl_ms
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = exact(now)
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[4]) then return {'T', stamp} end
local held, round, since = read(KEYS[1]), tonumber(ARGV[2]), stamp
local last, counts, top = known(KEYS[2], KEYS[3], ARGV[9], now, ARGV[10])
local number = given(ARGV[6], last, now)
-- Refused. Whoever waits has a place in line, and is told how many are before it.
local function behind(answer)
  if ARGV[8] == '1' then
    stand(KEYS[5], ARGV[1], ARGV[7])
    answer[7] = exact(redis.call('ZRANK', KEYS[5], ARGV[1]))
  end
  return answer
end
if held then
  if held.claim ~= ARGV[1] then
    return behind({'B', stamp, exact(last), exact(rest(KEYS[1], held)), held.text, ''})
  end
  -- A late request of an earlier round takes nothing back: see give.
  if held.round >= round then round, number = held.round, held.number end
  since = held.since
else
  local first, longest = first_reader(KEYS[4], now)
  if first then
    return behind({'B', stamp, exact(last), exact(first.rest), first.text, exact(longest)})
  end
  local one, since, left = turn_of_another(KEYS[6], ARGV[1])
  if one then return behind({'R', stamp, exact(last), exact(left), one, since}) end
end
local text = table.concat(
  {'1', ARGV[1], ARGV[7], exact(round), exact(number), since, ARGV[3], ARGV[5]}, ' ')
redis.call('SET', KEYS[1], text, 'PX', ARGV[3])
if number > last then keep(KEYS[2], KEYS[3], number, top, now) end
return {'Y', stamp, exact(number), counts}
