-- RLock and RFencedLock. KEYS: hash[, token counter]. ARGV: owner ttl_ms not_after_us how
-- The owner is new for each claim, so that a claim sent twice is not a second hold of the same
-- owner.
local ours = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
if ours or redis.call('EXISTS', KEYS[1]) == 0 then
  local token = ''
  if ours then
    if KEYS[2] then token = redis.call('GET', KEYS[2]) or '' end
  else
    -- The counter first: were it no number, nothing would have been written yet.
    if KEYS[2] then
      token = redis.call('INCR', KEYS[2])
      -- Beyond, two numbers are one to Lua, and not to Redis.
      token = token < 9007199254740992 and string.format('%.0f', token)
        or redis.call('GET', KEYS[2])
    end
    redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  end
  -- Of ours, too: a WAIT behind it would wait for nothing otherwise.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return granted(token)
end
return busy(redis.call('PTTL', KEYS[1]), owner_of(KEYS[1]))
