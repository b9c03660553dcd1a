-- Who has permits. KEYS: permits
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local all, holders = redis.call('ZRANGE', KEYS[1], 0, 999, 'WITHSCORES'), {}
for i = 1, #all, 2 do
  local id = string.gsub(all[i], '.', function(c) return string.format('%02x', string.byte(c)) end)
  if tonumber(all[i + 1]) > ms then holders[#holders + 1] = {id, 'p', '1', string.format('%.0f', all[i + 1] - ms)} end
end
return {'', holders}
