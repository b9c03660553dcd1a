-- Asks for a lock, with everything that may be in the way. ARGV: place, not_after_us, how: join,
-- try.
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[2]) then return {'T', text(now)} end
load(KEYS, 1, got)
local reply = stand(place_of(ARGV[1]), ARGV[3])
finish()
return reply
