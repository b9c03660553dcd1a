-- Compare and extend, many in one call. KEYS: keys. ARGV: value and ttl_ms of each
local replies = {}
for i = 1, #KEYS do
  local held = redis.pcall('GET', KEYS[i])
  if held == ARGV[i * 2 - 1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[i * 2])
    replies[i] = 'D'
  else
    replies[i] = 'X'
  end
end
return replies
