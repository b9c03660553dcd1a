-- Adds names to the list of those that somebody watches, and keeps it for a while. KEYS: the list. ARGV: seconds, names.
local list = redis.call('GET', KEYS[1]) or '\n'
local added = false
for i = 2, #ARGV do
  if not string.find(list, '\n' .. ARGV[i] .. '\n', 1, true) then
    list, added = list .. ARGV[i] .. '\n', true
  end
end
-- Every script looks through it: a long list is "everything".
if #list > 4096 then list, added = '\n*\n', true end
if added then redis.call('SET', KEYS[1], list, 'EX', ARGV[1]) else redis.call('EXPIRE', KEYS[1], ARGV[1]) end
return {'D', '0', '1'}
