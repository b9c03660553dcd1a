-- Who holds it: ending what is over, whether a place can be granted, writing a holder down and
-- taking one out.

local function summarise()
  call('HSET', record, '=', '2 ' .. text(many.used) .. ' ' .. many.up .. ' ' .. text(many.earliest))
end

local function outlive(us)
  local ms = math.ceil((us - now) / 1000)
  if call('PTTL', record) < ms then call('PEXPIRE', record, ms) end
end

-- A holder out of several: its fields and its deadline, or nil.
local function one_of(claim)
  local value = many and claim ~= '=' and call('HGET', record, claim)
  if not value then return nil end
  local deadline, rest = string.match(value, '^(%d+) (.*)$')
  if not deadline then fail('CORRUPT', record) end
  local holder = holder_of(rest)
  return holder, tonumber(deadline)
end

local function end_what_is_over()
  if not many or many.earliest > now then return end
  local all, over = call('HGETALL', record), {}
  many = {used = 0, up = '-', earliest = now + 86400000000 * 2}
  for i = 1, #all, 2 do
    if all[i] ~= '=' then
      local deadline, rest = string.match(all[i + 1], '^(%d+) (.*)$')
      if not deadline then fail('CORRUPT', record) end
      local holder = holder_of(rest)
      local free = deadline + holder.delay * 1000
      if free <= now then
        over[#over + 1] = all[i]
      else
        many.used = many.used + holder.count
        if holder.mode == 'u' then many.up = holder.claim end
        many.earliest = math.min(many.earliest, free)
      end
    end
  end
  for i = 1, #over, 1000 do call('HDEL', record, unpack(over, i, math.min(i + 999, #over))) end
  if #over > 0 then changed, lapsed, unheard = true, true, false end
  if many.used == 0 then
    call('DEL', record)
    many = nil
  else
    summarise()
  end
end

-- Whether a place can be granted now. Two results: it can; it never will (an upgrade whose hold is
-- gone).
local function fits(place)
  if place.hold ~= '-' then
    if one then return one.claim == place.hold and left > 0, one.claim ~= place.hold end
    local _, deadline = one_of(place.hold)
    if not deadline or deadline <= now then return false, true end
    return many.used == 1
  end
  if place.mode == 'p' then
    return (one and one.count or many and many.used or 0) + place.count <= stored
  end
  if not one and not many then return true end
  if place.mode == 'x' or one and one.mode == 'x' then return false end
  if place.mode == 'u' then return not (one and one.mode == 'u' or many and many.up ~= '-') end
  return true
end

local function next_number()
  stored = math.max(stored + 1, tick())
  dirty = true
  return stored
end

-- Writes a holder down. One alone is a string; a second one makes it a hash.
local function put(place, lease)
  local holder = {claim = place.claim, mode = place.mode, count = place.count, number = 0,
      ttl = place.ttl, delay = place.delay,
    since = text(now), channel = place.channel, conversion = '-', who = place.who,
    asked = place.asked, limit = place.limit, hold = place.hold}
  if place.mode ~= 'p' then holder.number = next_number() end
  -- Permits have no number, but their limit is to be kept for as long as they are used.
  changed, dirty = true, true
  if not one and not many then
    call('SET', record, holder_text(holder), 'PX', lease + holder.delay)
    one, left, unheard = holder, lease, false
    return holder
  end
  if one then
    local deadline = now + left * 1000
    call('DEL', record)
    call('HSET', record, one.claim, text(deadline) .. ' ' .. holder_text(one))
    many = {used = one.count, up = one.mode == 'u' and one.claim or '-',
        earliest = deadline + one.delay * 1000}
    call('PEXPIRE', record, math.max(left + one.delay, 1))
    one = nil
  end
  local free = now + (lease + holder.delay) * 1000
  call('HSET', record, holder.claim, text(now + lease * 1000) .. ' ' .. holder_text(holder))
  many.used = many.used + holder.count
  many.earliest = math.min(many.earliest, free)
  if holder.mode == 'u' then many.up = holder.claim end
  summarise()
  outlive(free)
  return holder
end

-- Takes the holder out; the caller has checked that it is there.
local function remove(claim)
  changed = true
  if one then
    call('DEL', record)
    if stored < one.number then stored, dirty = one.number, true end
    one = nil
    return
  end
  local holder = one_of(claim)
  call('HDEL', record, claim)
  many.used = many.used - holder.count
  if many.up == claim then many.up = '-' end
  if stored < holder.number then stored, dirty = holder.number, true end
  if many.used <= 0 then
    call('DEL', record)
    many = nil
  else
    summarise()
  end
end

-- The only holder left becomes exclusive; it keeps its id and gets a new number. `lease` nil: the
-- deadline stays.
local function upgrade(place, lease)
  local holder, rest = one, left
  if many then
    local deadline
    holder, deadline = one_of(place.hold)
    rest = math.ceil((deadline - now) / 1000)
    call('DEL', record)
    many = nil
  end
  holder.mode, holder.conversion, holder.number, holder.ttl = 'x', place.asked, next_number(),
      place.ttl
  one, left, changed = holder, lease or rest, true
  call('SET', record, holder_text(holder), 'PX', math.max(left + holder.delay, 1))
  return holder
end
