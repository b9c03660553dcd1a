local function exact(number) return string.format('%.0f', number) end
-- A time of day as a number.
local function tick(now) return (now / 1000000 - 1767225600) * 62500 end
-- How far the members' clocks may be apart, as a number: 10 s.
local SKEW = 625000
-- The greatest number that can be one of ours: 2^52, two thousand years, above the clock. Turns are
-- slower than the clock, so who once came near goes on. It stays below 2^53, from where on two
-- numbers are one to Lua. A member with a greater one counts for nothing: it would give the same
-- number again and again. Clients believe half of it, so what they spread is read everywhere.
local function most(now) return math.min(tick(now) + 4503599627370496, 9007190000000000) end
local function number_of(text, key, now)
  local number = not string.find(text, '%D') and tonumber(text)
  if not number or number > most(now) then error('LOCKKEEPER CORRUPT ' .. key, 0) end
  return number
end
-- The layout of what a member keeps about itself. Whoever wrote an older one may have waited for
-- less: it is as if it had not been admitted.
local LAYOUT = '2'
-- What a member keeps about itself: what it was told to begin above when it was admitted; whether
-- it was, which counts if that was in this run of it; `top` and `ahead`, see keep; and what stands
-- for the number of a name that it does not keep. It waits for the longest lease of all that ask
-- for one.
local function about(member, run, now, max_ttl)
  local told = redis.call('HMGET', member, 'run', 'floor', 'top', 'layout', 'max_ttl', 'ahead')
  local layout = told[4] or LAYOUT
  if (tonumber(layout) or 3) > 2 then error('LOCKKEEPER NEWER ' .. layout .. ' 2', 0) end
  if max_ttl and layout == LAYOUT and tonumber(max_ttl) > tonumber(told[5] or '0') then
    redis.call('HSET', member, 'max_ttl', max_ttl)
  end
  local function of(text) return text and number_of(text, member, now) or 0 end
  local floor, top, ahead = of(told[2]), of(told[3]), of(told[6])
  -- Nothing kept, or no more, since a week: it was a day ahead of the clock at most, so it is six
  -- days behind, and nobody gets a lower one whose proposal is of a clock that is far behind. If it
  -- was further ahead, or the clock was set back: above all that was ever kept here.
  local forgotten = math.max(ahead, tick(now) - 32400000000)
  if top > tick(now) + SKEW then forgotten = math.max(forgotten, top) end
  local counts = told[1] == run and told[4] == LAYOUT
  return floor, counts and '1' or '0', top, ahead, forgotten
end
-- The greatest number that this member may have kept for a name.
local function known(last, member, run, now, max_ttl)
  local floor, counts, top, ahead, forgotten = about(member, run, now, max_ttl)
  local kept = redis.call('GET', last)
  local number = kept and number_of(kept, last, now) or forgotten
  return math.max(number, floor), counts, top, ahead
end
-- The number that somebody is given who proposes one. None is above the fastest clock, or a floor
-- that is as far above it as clocks may be apart: a proposal beyond that comes from a client whose
-- clock is wrong, and would stay in the way of every floor.
local function given(proposed, last, now)
  local number = tonumber(proposed)
  if number > math.max(last, tick(now)) + 2 * SKEW then return last + 1 end
  return math.max(number, last + 1)
end
-- Keeps for ever what a name is not to fall short of once its number is kept no more (see known):
-- `ahead`, the greatest of all names that was more than a day ahead of the clock.
local function remember(member, number, ahead, now)
  if number > ahead and number > tick(now) + 5400000000 then
    redis.call('HSET', member, 'ahead', exact(number))
  end
end
-- Keeps the number of a name for another week.
local function keep_on(last, member, number, ahead, now)
  redis.call('EXPIRE', last, 604800)
  remember(member, number, ahead, now)
end
-- Keeps for ever `top`, which is not below the number of any name, and a second ahead of the clock,
-- so that not each number writes it. Where the clock was set back a number may be far ahead of it,
-- and not above `top`.
local function keep_top(member, number, top, ahead, now)
  if number > top then
    redis.call('HSET', member, 'top', exact(math.max(number, tick(now) + 62500)))
  end
  remember(member, number, ahead, now)
end
-- Keeps a number (R7), for a week like native Redis.
local function keep(last, member, number, top, ahead, now)
  -- What no member could read would stay in the way of every name. Nothing given is above this, and
  -- no client believes it.
  if number > most(now) + 2 * SKEW then return end
  redis.call('SET', last, exact(number), 'EX', 604800)
  keep_top(member, number, top, ahead, now)
end
