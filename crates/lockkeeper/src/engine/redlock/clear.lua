-- Ends a probe: removes the number that a lock which nobody uses has left, and says whether a word
-- to others gets through.
-- Only for a name that nobody uses again: the next number of another may be below this one (R7).
-- KEYS: record last readers. ARGV: channel
local told = redis.pcall('PUBLISH', ARGV[1], 'probe')
if redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then redis.call('DEL', KEYS[2]) end
return {'D', type(told) == 'table' and told.err or ''}
