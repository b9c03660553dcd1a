-- All of several locks at once, or none: the one script whose keys are of several names, and so of
-- several slots of a cluster.
-- KEYS: record, line, last, watch of each. ARGV: place, not_after_us and how of each,
-- as in acquire.lua.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
