-- Reads a record: version claim round number since_us ttl_ms who. What is not one of ours stops the
-- script; it is never taken for a free name.
local function read(key)
  local text = redis.call('GET', key)
  if not text then return end
  local version, rest = string.match(text, '^(%d+) (.*)$')
  if version and tonumber(version) > 1 then error('LOCKKEEPER NEWER ' .. version, 0) end
  local claim, round, number, since, ttl, who =
    string.match(rest or '', '^(%x+) (%d+) (%d+) (%d+) (%d+) ([^ ]+)$')
  if version ~= '1' or not claim then error('LOCKKEEPER CORRUPT ' .. key, 0) end
  return {text = text, claim = claim, round = tonumber(round), number = tonumber(number),
    since = since, ttl = ttl, who = who}
end
