-- What release.lua does, for the locks of several names at once. KEYS: key of each. ARGV: value of
-- each.
-- Answers a letter for each. D: given back. W: nothing was done, and its own script is asked.
-- A key of another type is shown as none.
local kept = redis.call('MGET', unpack(KEYS))
local said, free = {}, {}
for i, key in ipairs(KEYS) do
  said[i] = 'W'
  if kept[i] == ARGV[i] then free[#free + 1], said[i] = key, 'D' end
end
-- A server that refuses this one refuses the whole, before anything was done.
if free[1] then redis.call('DEL', unpack(free)) end
return table.concat(said)
