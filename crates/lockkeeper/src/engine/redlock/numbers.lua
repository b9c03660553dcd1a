local function exact(number) return string.format('%.0f', number) end
-- A time of day as a number.
local function tick(now) return (now / 1000000 - 1767225600) * 62500 end
-- The greatest number that this member may have kept for a name: what it knows of it, and what it
-- was told to begin above when it was admitted. It was, if that was in this run of it. Whoever goes
-- by another max_ttl than those who admitted it is refused.
local function known(last, member, run, now, max_ttl)
  local told = redis.call('HMGET', member, 'run', 'floor', 'top', 'layout', 'max_ttl', 'ahead')
  if tonumber(told[4] or '1') ~= 1 then error('LOCKKEEPER NEWER ' .. told[4], 0) end
  if max_ttl and told[5] and told[5] ~= max_ttl then
    error('LOCKKEEPER MAXTTL ' .. told[5], 0)
  end
  local kept, floor = redis.call('GET', last), tonumber(told[2] or '0')
  local top, ahead = tonumber(told[3] or '0'), tonumber(told[6] or '0')
  local number = tonumber(kept or '0')
  if not number then error('LOCKKEEPER CORRUPT ' .. last, 0) end
  if not kept then
    -- Nothing kept, or no more, since a week: the clock has passed it meanwhile. Not if it was
    -- ahead of the clock, or if the clock was set back: then above all that was ever kept here.
    number = ahead
    if top > tick(now) + 625000 then number = math.max(number, top) end
  end
  return math.max(number, floor), told[1] == run and '1' or '0', top
end
-- Keeps a number (R7), for a week like native Redis. For ever it keeps `top`, the greatest of all
-- names, and `ahead`, the greatest that was more than a day ahead of the clock.
local function keep(last, member, number, top, now)
  redis.call('SET', last, exact(number), 'EX', 604800)
  if number <= top then return end
  redis.call('HSET', member, 'top', exact(number))
  if number > tick(now) + 5400000000 then redis.call('HSET', member, 'ahead', exact(number)) end
end
