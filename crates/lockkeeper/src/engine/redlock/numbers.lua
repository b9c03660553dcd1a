local function exact(number) return string.format('%.0f', number) end
-- The greatest number that this member may have kept for a name: what it knows of it, and what it
-- was told to begin above when it was admitted. It was, if that was in this run of it. Whoever goes
-- by another max_ttl than those who admitted it is refused.
local function known(last, member, run, max_ttl)
  local told = redis.call('HMGET', member, 'run', 'floor', 'top', 'layout', 'max_ttl')
  if tonumber(told[4] or '1') ~= 1 then error('LOCKKEEPER NEWER ' .. told[4], 0) end
  if max_ttl and told[5] and told[5] ~= max_ttl then
    error('LOCKKEEPER MAXTTL ' .. told[5], 0)
  end
  -- Nothing kept, or no more: above everything that was ever kept here for any name.
  local number = tonumber(redis.call('GET', last) or told[3] or '0')
  if not number then error('LOCKKEEPER CORRUPT ' .. last, 0) end
  local floor, top = tonumber(told[2] or '0'), tonumber(told[3] or '0')
  return math.max(number, floor), told[1] == run and '1' or '0', top
end
-- Keeps a number (R7), for a week like native Redis. `top` is the greatest of all names, for ever:
-- a name whose number is kept no more begins above it, and so does a member that comes back empty.
local function keep(last, member, number, top)
  redis.call('SET', last, exact(number), 'EX', 604800)
  if number > top then redis.call('HSET', member, 'top', exact(number)) end
end
