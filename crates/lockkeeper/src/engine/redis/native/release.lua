load(KEYS, 1, got)
local claim = string.match(ARGV[1], '^%d+ (%x+) ')
local outcome = 'X'
local _, deadline = one_of(claim)
if one and one.claim == claim and left > 0 or deadline and deadline > now then
  remove(claim)
  outcome = 'D'
end
local again
refuse(claim, tonumber(ARGV[3] or '0'))
if ARGV[4] then
  if now > tonumber(ARGV[5]) then again = {'T', text(now)} end
  -- Whoever waits is served whether or not somebody stands again.
  if again then settle() else again = stand(place_of(ARGV[4]), ARGV[6]) end
else
  settle()
end
finish()
return {outcome, text(now), again}
