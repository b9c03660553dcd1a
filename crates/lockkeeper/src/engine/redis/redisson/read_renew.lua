-- The read half. KEYS: hash and timeout key of each. ARGV: owner and ttl_ms of each
local replies = {}
for i = 1, #KEYS, 2 do
  local held = redis.pcall('HEXISTS', KEYS[i], ARGV[i])
  if held == 1 and redis.call('EXISTS', KEYS[i + 1]) == 1 then
    redis.call('PEXPIRE', KEYS[i + 1], ARGV[i + 1])
    redis.call('PEXPIRE', KEYS[i], math.max(redis.call('PTTL', KEYS[i]), tonumber(ARGV[i + 1])))
    replies[#replies + 1] = 'D'
  else
    replies[#replies + 1] = 'X'
  end
end
return replies
