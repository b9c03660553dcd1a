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
  -- Places stand before all signs of life: each is told with its own.
  local members = redis.pcall('ZRANGE', KEYS[i + 1], 0, tonumber(ARGV[1]) - 1)
  local places = {}
  for n = 1, members.err and 0 or #members do
    local claim = members[n]:match('^1 (%S+)')
    if claim then
      places[#places + 1] = members[n]
      places[#places + 1] = redis.call('ZSCORE', KEYS[i + 1], 's' .. claim) or '0'
    end
  end
  reply[#reply + 1] = {kind, value, left, places, redis.call('MGET', KEYS[i + 2])[1]}
end
return reply
