-- Ends a probe: removes the number that a lock which nobody uses has left, and says whether a word
-- to others gets through.
-- KEYS: record, line, last, watch.
local told = redis.pcall('PUBLISH', KEYS[4], KEYS[1])
if redis.call('EXISTS', KEYS[1]) == 0 then
  -- A line that is there may remember that a caller has left, whose request can still arrive: it
  -- ends by itself, the number behind it.
  if redis.call('EXISTS', KEYS[2]) == 0 then
    redis.call('DEL', KEYS[3])
  else
    redis.call('EXPIRE', KEYS[3], 60)
  end
end
return {'D', type(told) == 'table' and told.err or ''}
