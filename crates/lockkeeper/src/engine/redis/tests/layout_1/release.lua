load(KEYS, 1, got)
local outcome = 'X'
local _, deadline = one_of(ARGV[1])
if one and one.claim == ARGV[1] and left > 0 or deadline and deadline > now then
  remove(ARGV[1])
  outcome = 'D'
end
local again
refuse(ARGV[1], tonumber(ARGV[2]))
if ARGV[3] then
  local place = place_at(3)
  if now > tonumber(ARGV[13]) then again = {'T', text(now)} end
  -- Whoever waits is served whether or not somebody stands again.
  if again then settle() else again = stand(place, ARGV[14]) end
else
  settle()
end
finish()
return {outcome, text(now), again}
