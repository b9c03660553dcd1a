-- All of several locks at once, or none. KEYS: record, line, last of each, then the watch list; ARGV: 13 arguments each, as in take.lua.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
