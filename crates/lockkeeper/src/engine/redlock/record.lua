-- Reads a record: version claim first round number since_us ttl_ms who. What is not one of ours
-- stops the script; it is never taken for a free name.
local function parse(text, key)
  local version, rest = string.match(text, '^(%d+) (.*)$')
  if version and tonumber(version) > 1 then error('LOCKKEEPER NEWER ' .. version, 0) end
  local claim, first, round, number, since, ttl, who =
    string.match(rest or '', '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d+) ([^ ]+)$')
  if version ~= '1' or not claim then error('LOCKKEEPER CORRUPT ' .. key, 0) end
  return {text = text, claim = claim, first = first, round = tonumber(round),
    number = tonumber(number), since = since, ttl = tonumber(ttl), who = who}
end
-- Where contenders have the time at which they began: this one has what it asked for, and nobody
-- keeps anything beside it. A claim that nobody extends may be one that cannot, but its hold lasts.
local HELD = '0'
-- What stands in its place while there are readers. A release without readers takes it for a record
-- of a later one, and stops with both numbers: it would let a writer in beside them (R17).
local READ = '2 readers'
-- What stands in the turn of a name where it is nobody's, and readers wait that a writer refused:
-- they stand in no line.
local READERS_WAIT = 'readers wait'
local function read(key)
  local text = redis.call('GET', key)
  return text and text ~= READ and parse(text, key)
end
-- How many milliseconds another's record lasts still: never more than its own lease, counted from
-- when it is met. A clock that was set back, or PERSIST, would keep a name from everybody. It was
-- extended before it was met, so no lease that lasts is cut.
local function rest(key, held)
  local left = redis.call('PTTL', key)
  if left >= 0 and left <= held.ttl then return left end
  redis.call('PEXPIRE', key, held.ttl)
  return held.ttl
end
