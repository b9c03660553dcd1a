-- Who reads: a hash, a field for each claim. Its value is the time until which the reader's lease
-- lasts, in microseconds, and its record. One that is over is nobody's.
local function reader(value, key, now)
  local ends, text = string.match(value, '^(%d+) (.*)$')
  if not ends then error('LOCKKEEPER CORRUPT ' .. key, 0) end
  if tonumber(ends) <= now then return end
  local one = parse(text, key)
  one.rest = math.ceil((ends - now) / 1000)
  return one
end
-- One of them.
local function reading(key, claim, now)
  local value = redis.call('HGET', key, claim)
  return value and reader(value, key, now)
end
-- Writes one, which lasts until then, and says that there are readers for as long as the last of
-- them does.
local function write_reader(keys, claim, ends, text, ttl)
  redis.call('HSET', keys[4], claim, string.format('%.0f %s', ends, text))
  local longest = string.format('%.0f', math.max(redis.call('PTTL', keys[4]), tonumber(ttl)))
  redis.call('PEXPIRE', keys[4], longest)
  redis.call('SET', keys[1], READ, 'PX', longest)
end
-- Whether one more would be too many (R13), once those that are over were thrown out.
local READERS_MAX = 16384
local function is_full(key, now)
  if redis.call('HLEN', key) < READERS_MAX then return false end
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if tonumber(string.match(all[i + 1], '^%d+') or now + 1) <= now then
      redis.call('HDEL', key, all[i])
    end
  end
  return redis.call('HLEN', key) >= READERS_MAX
end
-- Whether there is any.
local function is_read(key, now)
  for _, value in ipairs(redis.call('HVALS', key)) do
    if tonumber(string.match(value, '^%d+') or now + 1) > now then return true end
  end
  return false
end
-- Whether one stands before another, as contenders are ordered. One that nobody extends counts as
-- dead (see Rules::living), and comes last: it would hide those that live.
local function is_before(one, other)
  if one.lives ~= other.lives then return one.lives end
  local since, least = tonumber(one.first), tonumber(other.first)
  return since < least or since == least and one.claim < other.claim
end
-- The first of them all, and how many milliseconds the last one lasts.
local function first_reader(key, now)
  local all, first, longest = redis.call('HGETALL', key), nil, 0
  for i = 1, #all, 2 do
    local one = reader(all[i + 1], key, now)
    if not one then
      redis.call('HDEL', key, all[i])
    else
      if one.rest > one.ttl then
        -- As a record: see rest.
        one.rest = one.ttl
        redis.call('HSET', key, one.claim,
          string.format('%.0f %s', now + one.ttl * 1000, one.text))
      end
      one.lives = one.ttl - one.rest <= math.max(1000, one.ttl / 50)
      if not first or is_before(one, first) then first = one end
      longest = math.max(longest, one.rest)
    end
  end
  -- What says that there are readers lasts as long as they do.
  local left = first and redis.call('PTTL', key) or 0
  if left < 0 or left > longest + 1 then
    redis.call('PEXPIRE', key, longest)
    if redis.call('GET', KEYS[1]) == READ then redis.call('PEXPIRE', KEYS[1], longest) end
  end
  return first, longest
end
