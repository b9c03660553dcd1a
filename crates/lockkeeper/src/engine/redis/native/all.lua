local names = #KEYS / 4
local function open(i)
  me, granted = nil, nil
  local at = i * 4 - 3
  load(KEYS, at, redis.call('MGET', KEYS[at], KEYS[at + 2], KEYS[at + 3]))
  return place_of(ARGV[i * 3 - 2])
end
local replies = {}
for i = 1, names do
  if now > tonumber(ARGV[i * 3 - 1]) then return {'T', text(now)} end
end
-- Settling is right whatever comes of the rest; nothing is granted to us before all can be.
for i = 1, names do
  local place = open(i)
  local holder = one and one.claim == place.claim and left > 0 or one_of(place.claim)
  if not holder then
    local differs = limit_differs(place)
    if differs then return {'M', text(now), differs[3], text(i)} end
    settle()
    finish()
    if queue or not fits(place) then
      local rest, shown = blocker()
      return {'B', text(now), text(i), rest, shown}
    end
  end
end
for i = 1, names do
  local place = open(i)
  replies[i] = stand(place, 'try')
  finish()
end
return {'G', text(now), replies}
