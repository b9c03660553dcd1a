-- The beginning of the scripts that have no short way. KEYS: record, line, last, watch.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local got = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4])
