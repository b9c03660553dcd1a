-- Whose lock a key is, as far as its type and value tell. KEYS: key. ARGV: `native` where the key
-- is one of that layout.
-- A lock of one key has a time to live, and a token as its value: a counter or a cached text is no
-- lock. The fields of a hash are counted first: a large one is none, and is not read.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return '' end
if ARGV[1] then return ARGV[1] end
if kind == 'string' and redis.call('PTTL', KEYS[1]) > 0 then
  local value = redis.call('GETRANGE', KEYS[1], 0, 64)
  if #value >= 16 and #value <= 64 and value:match('^[%w+/=_-]+$') then return 'plain' end
elseif kind == 'hash' and redis.call('HLEN', KEYS[1]) <= 1000 then
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if field:match('^%x+%-%x+%-%x+%-%x+%-%x+:%d+') then return 'redisson' end
  end
end
return ''
