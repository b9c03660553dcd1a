-- Tells who holds and who waits; changes nothing. KEYS: record, line, last of each name. ARGV: how many places to tell of.
local time = redis.call('TIME')
local reply = {string.format('%.0f', time[1] * 1000000 + time[2])}
for i = 1, #KEYS, 3 do
  local kind = redis.call('TYPE', KEYS[i]).ok
  local value, left = false, '0'
  if kind == 'string' then
    value, left = redis.call('GET', KEYS[i]), string.format('%.0f', redis.call('PTTL', KEYS[i]))
  elseif kind == 'hash' then
    value = redis.call('HGETALL', KEYS[i])
  end
  local places = redis.pcall('ZRANGE', KEYS[i + 1], 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
  if places.err then places = {} end
  reply[#reply + 1] = {kind, value, left, places, redis.call('MGET', KEYS[i + 2])[1]}
end
return reply
