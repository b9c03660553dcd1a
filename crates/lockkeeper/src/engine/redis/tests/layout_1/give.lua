-- The beginning of a release. KEYS: record, line, last, watch.
-- ARGV: claim, until when to refuse a request of it that is still on its way (0: there is none),
-- then nothing or a place that stands in line in the same message, as in take.lua.
-- Nobody waits: two calls and done.
local function text(number) return string.format('%.0f', number) end
local got = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4])
if got[1] and ARGV[2] == '0' and not ARGV[3] and not got[3] and got[2]
    and string.sub(got[2], -1) == ':' then
  local claim, delay = string.match(got[1], '^1 (%x+) %a %d+ %d+ %d+ (%d+) ')
  -- With a delay, the time to live does not say by itself whether the lease is over.
  if claim == ARGV[1] and delay == '0' then
    redis.call('DEL', KEYS[1])
    return {'D', '0'}
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
