-- What give_free.lua does, for the holds of several names at once.
-- KEYS: record, line, signs, turn of each, all records first. ARGV: claim round channel of each.
-- Answers a letter for each. D: deleted and told. W: nothing was done, and give.lua is asked.
local names = #KEYS / 4
-- A key of another type is shown as none.
local kept = redis.call('MGET', unpack(KEYS, 1, names))
local free = redis.call('EXISTS', unpack(KEYS, names + 1)) == 0
local said = {}
for i = 1, names do
  local claim = ARGV[3 * i - 2]
  local whose, of = string.match(kept[i] or '', '^1 (%x+) %d+ (%d+) ')
  said[i] = 'W'
  if whose == claim and tonumber(of) <= tonumber(ARGV[3 * i - 1]) and (free
    or redis.call('EXISTS', KEYS[names + i], KEYS[2 * names + i], KEYS[3 * names + i]) == 0)
    -- One that stands here twice has been given back.
    and redis.call('DEL', KEYS[i]) == 1 then
    redis.pcall('PUBLISH', ARGV[3 * i], claim)
    said[i] = 'D'
  end
end
return table.concat(said)
