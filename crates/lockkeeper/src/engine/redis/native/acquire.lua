load(KEYS, 1, got)
local place = place_at(1)
local reply = limit_differs(place.mode, tonumber(ARGV[4])) or stand(place, ARGV[12])
finish()
return reply
