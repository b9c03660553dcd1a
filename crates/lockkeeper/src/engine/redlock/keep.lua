-- Extends our record, if it is there, and gives it our number, if that is the greatest. Else it
-- says which number it could have.
-- KEYS: record last member. ARGV: claim ttl_ms number run
local time = redis.call('TIME')
local stamp = exact(time[1] * 1000000 + time[2])
local held, number = read(KEYS[1]), tonumber(ARGV[3])
local last, counts, top = known(KEYS[2], KEYS[3], ARGV[4])
if not held then return {'N', stamp, exact(last)} end
if held.claim ~= ARGV[1] then
  return {'B', stamp, exact(last), exact(redis.call('PTTL', KEYS[1])), held.text}
end
if number > last then
  local text = table.concat({'1', held.claim, exact(held.round), exact(number), held.since,
    held.ttl, held.who}, ' ')
  redis.call('SET', KEYS[1], text, 'PX', ARGV[2])
  keep(KEYS[2], KEYS[3], number, top)
  return {'Y', stamp, exact(number), counts}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('EXPIRE', KEYS[2], 604800)
return {'Y', stamp, exact(held.number == number and number or last + 1), counts}
