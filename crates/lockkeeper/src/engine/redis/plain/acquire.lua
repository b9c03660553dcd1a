-- SET key value NX PX ttl, as everybody does it; and sent twice it holds once (R3). KEYS: key.
-- ARGV: value ttl_ms not_after_us how
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
  -- Written once more, or a WAIT behind it would wait for nothing.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return granted()
end
if not held then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return granted()
end
return busy(redis.call('PTTL', KEYS[1]), held)
