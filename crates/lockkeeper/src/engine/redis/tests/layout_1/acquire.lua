load(KEYS, 1, got)
local place = place_at(1)
local reply = stand(place, ARGV[12])
finish()
return reply
