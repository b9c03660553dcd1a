-- Tells who holds and who waits; changes nothing. KEYS: record, line, last of each name.
-- ARGV: how many places to tell of, how long a text of ours is at most, how many fields a record of
-- ours has at most, after how many bytes of records no further name is told of: the caller asks
-- again for the rest.
local time = redis.call('TIME')
local reply = {string.format('%.0f', time[1] * 1000000 + time[2])}
local places_max, text_max, fields_max, enough = tonumber(ARGV[1]), tonumber(ARGV[2]),
    tonumber(ARGV[3]), tonumber(ARGV[4])
local told = 0
for i = 1, #KEYS, 3 do
  if told > enough then break end
  -- What keeps this name from being read, in the words of the scripts that refuse to lock it; the
  -- others are told all the same.
  local trouble = ''
  local function typed(key, ...)
    local kind = redis.call('TYPE', key).ok
    for _, right in ipairs({'none', ...}) do
      if kind == right then return kind end
    end
    trouble = 'TYPE ' .. key
    return kind
  end
  -- A huge value is no text of ours, and is not sent: it would hold up every other answer.
  local function text_of(key)
    if redis.call('STRLEN', key) <= text_max then return redis.call('GET', key) end
    trouble = 'CORRUPT ' .. key
    return false
  end
  local value, left, last, members, places = false, '0', false, {}, {}
  if typed(KEYS[i + 2], 'string') == 'string' then last = text_of(KEYS[i + 2]) end
  if typed(KEYS[i + 1], 'zset') == 'zset' then
    members = redis.call('ZRANGE', KEYS[i + 1], 0, places_max - 1)
  end
  local kind = typed(KEYS[i], 'string', 'hash')
  if kind == 'string' then
    value, left = text_of(KEYS[i]), string.format('%.0f', redis.call('PTTL', KEYS[i]))
  elseif kind == 'hash' then
    -- Counted first: somebody else's hash of millions of fields would stop the server for everybody
    -- while it is read.
    local fields = redis.call('HLEN', KEYS[i]) <= fields_max
    value = fields and redis.call('HGETALL', KEYS[i]) or {}
    if not fields then trouble = 'CORRUPT ' .. KEYS[i] end
    for n = 1, #value do
      if #value[n] > text_max then value, trouble = {}, 'CORRUPT ' .. KEYS[i] break end
      told = told + #value[n]
    end
  end
  -- Places stand before all signs of life: each is told with its own.
  for n = 1, #members do
    local version, claim = members[n]:match('^(%d+) (%x+) %w')
    if version and #members[n] <= text_max then
      places[#places + 1] = members[n]
      places[#places + 1] = redis.call('ZSCORE', KEYS[i + 1], 's' .. claim) or '0'
    end
  end
  reply[#reply + 1] = {kind, value, left, places, last, trouble}
end
return reply
