-- Who has permits. KEYS: counter, permits. ARGV: whole, as in permits.lua
-- The name is the key whatever its type: a hash is a lock, and no semaphore.
if redis.call('TYPE', KEYS[1]).ok == 'hash' then return {'', {}} end
local counter = redis.call('GET', KEYS[1])
if counter and not string.find(counter, '^%-?%d+$') then
  return redis.error_reply('LOCKKEEPER CORRUPT ' .. KEYS[1])
end
local all, holders, known = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'), {}, {}
for i = 1, #all, 2 do
  if tonumber(all[i + 1]) > ms then
    -- The permits of one claim of ours differ in the last two bytes only.
    local claim = string.sub(all[i], 1, -3) .. all[i + 1]
    local at = known[claim]
    if at then
      holders[at][3] = string.format('%.0f', holders[at][3] + 1)
    else
      known[claim] = #holders + 1
      holders[#holders + 1] = {digits(all[i]), 'p', '1', string.format('%.0f', all[i + 1] - ms)}
    end
  end
end
local free = tonumber(counter or '')
return {free and ARGV[1] == '1' and string.format('%.0f', free + #all / 2) or '', holders}
