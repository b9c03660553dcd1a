-- Leaves the line, or gives back a grant that is under way. ARGV: the place, until when to refuse
-- it (0: no need).
load(KEYS, 1, got)
local place = place_of(ARGV[1])
local outcome = 'X'
if marked and call('ZREM', line, place.member, 's' .. place.claim, 'a' .. place.claim) > 0 then
  outcome, changed = 'D', true
end
if place.hold == '-' then
  local _, deadline = one_of(place.claim)
  if one and one.claim == place.claim and left > 0 or deadline and deadline > now then
    remove(place.claim)
    outcome = 'D'
  end
elseif one and one.claim == place.hold and one.conversion == place.asked and one.mode == 'x'
    and left > 0 then
  -- An upgrade that nobody wants any more: the hold is upgradable as before. That it was converted
  -- stays written down: a copy of this request or of an older one may still be on its way, and must
  -- not make a writer of it.
  one.mode = 'u'
  call('SET', record, holder_text(one), 'PX', left + one.delay)
  outcome, changed = 'D', true
end
refuse(place.claim, tonumber(ARGV[2]))
settle()
finish()
return {outcome, text(now)}
