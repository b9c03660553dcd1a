-- Ends a probe: removes the number that a lock which nobody uses has left, and says whether a word to others gets through.
-- KEYS: record, line, last, watch list.
local told = redis.pcall('PUBLISH', KEYS[4], KEYS[1])
if redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 then redis.call('DEL', KEYS[3]) end
return {'D', type(told) == 'table' and told.err or ''}
