-- Upgrades or downgrades a hold, which keeps its id. ARGV as in acquire.lua; hold is the one
-- to convert.
load(KEYS, 1, got)
if now > tonumber(ARGV[2]) then return {'T', text(now)} end
local place, how = place_of(ARGV[1]), ARGV[3]
me = place
if marked and call('ZSCORE', line, 'w' .. place.claim) then return {'T', text(now)} end
local holder, deadline = one, nil
if one then
  if one.claim ~= place.hold or left <= 0 then return {'X', text(now)} end
  if one.conversion == place.asked and one.mode == place.mode then
    call('PEXPIRE', record, one.ttl + one.delay)
    return granted_reply(one)
  end
else
  holder, deadline = one_of(place.hold)
  if not holder or deadline <= now then return {'X', text(now)} end
  if holder.conversion == place.asked and holder.mode == place.mode then
    call('HSET', record, place.hold, text(now + holder.ttl * 1000) .. ' ' .. holder_text(holder))
    outlive(now + (holder.ttl + holder.delay) * 1000)
    return granted_reply(holder)
  end
end
-- A copy that was delayed in the network, behind a younger conversion or its own withdrawal: it
-- must change nothing.
if tonumber(place.asked) <= (tonumber(holder.conversion) or 0) then return {'T', text(now)} end
end_what_is_over()
local reply
if holder.mode == 's' and place.mode ~= 's' then
  -- Others may have ended here: whoever waits, and whoever watches, is told.
  settle()
  finish()
  return {'E', text(now)}
end
if place.mode == 'x' then
  if fits(place) then
    if marked then call('ZREM', line, place.member, 's' .. place.claim, 'a' .. place.claim) end
    reply = granted_reply(upgrade(place, place.ttl))
  elseif how == 'try' then
    local rest, shown = blocker()
    reply = {'B', text(now), rest, shown}
  else
    -- In front of the line: there is one upgradable holder at most, and no new reader comes in
    -- while it waits.
    call('ZADD', line, '0', place.member)
    live(place)
    marked, changed = true, true
    reply = in_line(0)
  end
else
  holder.mode, holder.conversion, holder.number, changed = place.mode, place.asked, next_number(),
      true
  if one then
    left = place.ttl
    call('SET', record, holder_text(holder), 'PX', left + holder.delay)
  else
    if place.mode == 'u' then
      many.up = place.hold
    elseif many.up == place.hold then
      many.up = '-'
    end
    call('HSET', record, place.hold, text(now + place.ttl * 1000) .. ' ' .. holder_text(holder))
    summarise()
    outlive(now + (place.ttl + holder.delay) * 1000)
  end
  reply = granted_reply(holder)
  settle()
end
finish()
return reply
