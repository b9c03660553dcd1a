-- RLock, RFencedLock, RFairLock and the write half. KEYS: hashes. ARGV: owner field and ttl_ms of each
local replies = {}
for i = 1, #KEYS do
  local held = redis.pcall('HEXISTS', KEYS[i], ARGV[i * 2 - 1])
  if held == 1 then
    redis.call('PEXPIRE', KEYS[i], ARGV[i * 2])
    replies[i] = 'D'
  else
    replies[i] = 'X'
  end
end
return replies
