-- The value is ours.
local function ours(key, value) return redis.pcall('GET', key) == value end
