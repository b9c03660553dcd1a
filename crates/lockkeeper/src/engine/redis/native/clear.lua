-- Ends a probe: removes the number that a lock which nobody uses has left, and says whether a word
-- to others gets through.
-- KEYS: record, line, last, watch.
local told = redis.pcall('PUBLISH', KEYS[4], KEYS[1])
if redis.call('EXISTS', KEYS[1]) == 0 then
  -- A line that is there may remember that a caller has left, whose request can still arrive, and
  -- somebody may watch: both end by themselves, the number with their flags behind them.
  local lives = math.max(redis.call('PTTL', KEYS[2]), redis.call('PTTL', KEYS[4]))
  if lives == -2 then
    redis.call('DEL', KEYS[3])
  elseif lives >= 0 then
    redis.call('PEXPIRE', KEYS[3], lives + 30000)
  end
end
return {'D', type(told) == 'table' and told.err or ''}
