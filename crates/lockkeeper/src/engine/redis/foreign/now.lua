-- How asking begins in every layout of other programs. ARGV[3]: not_after_us
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp, ms = string.format('%.0f', now), math.floor(now / 1000)
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[3]) then return {'T', stamp} end
local function granted(token) return {'G', stamp, token or ''} end
local function busy(rest_ms, who) return {'B', stamp, string.format('%.0f', rest_ms), who or ''} end
