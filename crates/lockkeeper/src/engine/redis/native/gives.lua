-- What the beginning of give.lua does, for the holds of several names at once.
-- KEYS: last of each, record of each. ARGV: for each its first two, as give.lua has them.
-- Answers a letter for each. D: given back. W: nothing was done, and its own script is asked.
local names = #KEYS / 2
-- A key of another type is shown as none.
local kept = redis.call('MGET', unpack(KEYS))
local said, free = {}, {}
for i = 1, names do
  local begins, last, value = ARGV[2 * i - 1], ARGV[2 * i], kept[i + names]
  if last ~= '' and kept[i] == last and value and string.sub(value, 1, #begins) == begins then
    free[#free + 1], said[i] = KEYS[i + names], 'D'
  else
    said[i] = 'W'
  end
end
-- A server that refuses this one refuses the whole, before anything was done.
if free[1] then redis.call('DEL', unpack(free)) end
return table.concat(said)
