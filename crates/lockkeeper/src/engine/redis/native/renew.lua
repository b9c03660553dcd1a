-- Renews leases, many in one call. KEYS: record and last of each; ARGV: claim and ttl_ms of each.
-- Answers D and the number that it holds with, X, or an error text for each.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local HOLD = ' (%x+) (%d+) %a %d+ %d+ %S+ %S+ %d+ %d+ %S+ (%d+)(.*)$'
-- The number outlives the longest hold (R7), and a limit the use of its permits.
local function keep(last, number, times)
  -- As granted on the short way, it has no other time than its number.
  local since = string.match(times, '^ (%d+) ') or number * 16 + 1767225600000000
  if now - since > 86400000000 then redis.call('EXPIRE', last, 604800) end
end
local function renew(record, last, claim, ttl)
  local value = redis.pcall('GET', record)
  if type(value) == 'string' then
    local owner, delay, number, rest = string.match(value, '^2' .. HOLD)
    if owner ~= claim then return 'X' end
    -- Inside its delay the lease is over, although the record is there.
    if delay ~= '0' and redis.call('PTTL', record) <= tonumber(delay) then return 'X' end
    redis.call('PEXPIRE', record, ttl + delay)
    keep(last, number, rest)
    return 'D' .. number
  end
  if not value then return 'X' end
  value = redis.pcall('HGET', record, claim)
  if type(value) == 'table' then return value.err end
  if not value then return 'X' end
  local deadline, rest = string.match(value, '^(%d+) (.*)$')
  local _, delay, number, times = string.match(rest or '', '^2' .. HOLD)
  if not delay then return 'LOCKKEEPER CORRUPT ' .. record end
  if tonumber(deadline) <= now then return 'X' end
  -- First the time to live: in a full server the first write of a script must not be one that needs
  -- memory.
  local ms = ttl + delay
  redis.call('PEXPIRE', record, math.max(ms, redis.call('PTTL', record)))
  redis.call('HSET', record, claim, text(now + ttl * 1000) .. ' ' .. rest)
  keep(last, number, times)
  return 'D' .. number
end
local replies = {}
for i = 1, #ARGV, 2 do
  replies[#replies + 1] = renew(KEYS[i], KEYS[i + 1], ARGV[i], tonumber(ARGV[i + 1]))
end
return {text(now), replies}
