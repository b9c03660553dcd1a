-- Extends what is still ours, many in one call. KEYS: keys. ARGV: identity and ttl_ms of each.
-- `ours` is the layout's.
local replies = {}
for i = 1, #KEYS do
  if ours(KEYS[i], ARGV[i * 2 - 1]) then
    redis.call('PEXPIRE', KEYS[i], ARGV[i * 2])
    replies[i] = 'D'
  else
    replies[i] = 'X'
  end
end
return replies
