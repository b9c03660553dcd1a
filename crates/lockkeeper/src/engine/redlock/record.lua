-- Reads a record: version claim first round number since_us ttl_ms who. What is not one of ours
-- stops the script; it is never taken for a free name.
local function parse(text, key)
  local version, rest = string.match(text, '^(%d+) (.*)$')
  if version and tonumber(version) > 1 then error('LOCKKEEPER NEWER ' .. version, 0) end
  local claim, first, round, number, since, ttl, who =
    string.match(rest or '', '^(%x+) (%d+) (%d+) (%d+) (%d+) (%d+) ([^ ]+)$')
  if version ~= '1' or not claim then error('LOCKKEEPER CORRUPT ' .. key, 0) end
  return {text = text, claim = claim, first = first, round = tonumber(round),
    number = tonumber(number), since = since, ttl = ttl, who = who}
end
-- What stands in its place while there are readers. A release without readers takes it for a record
-- of a later one, and stops with both numbers: it would let a writer in beside them (R17).
local READ = '2 readers'
local function read(key)
  local text = redis.call('GET', key)
  return text and text ~= READ and parse(text, key)
end
