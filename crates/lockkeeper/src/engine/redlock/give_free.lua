-- Most often nobody waits for the name: it is deleted and told here, in front of what is only for
-- the others. As give, which has the same keys and arguments.
local claim, text = ARGV[1], redis.call('GET', KEYS[1])
local whose, of = string.match(text or '', '^1 (%x+) %d+ (%d+) ')
if whose == claim and tonumber(of) <= tonumber(ARGV[2])
  and ARGV[3] == '' and ARGV[4] and not ARGV[5]
  and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0 then
  redis.call('DEL', KEYS[1])
  redis.pcall('PUBLISH', ARGV[4], claim)
  return {'D', '0'}
end
