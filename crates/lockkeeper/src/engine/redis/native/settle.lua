-- What every script does first: end what is over, skip dead places, grant to the head(s) of the
-- line, tell them. So whoever touches a lock moves its line, and any client may die at any point.
local blocker

-- Until when a place may still answer, if it was asked for a sign of life and gave none since; nil:
-- it owes none.
local function owes(place, sign)
  local asked = questioned and call('ZSCORE', line, 'a' .. place.claim)
  asked = asked and tonumber(asked)
  if not asked or asked <= sign then return nil end
  if asked > now + LIVES_US then
    -- Asked in the future: the clock was set back (D2).
    asked = now + LIVES_US
    call('ZADD', line, 'XX', text(asked), 'a' .. place.claim)
  end
  return asked - LIVES_US + WINDOW_US
end

-- The places from this joining number on that live and owe no answer, in order and without our own,
-- until `visit` answers true.
local function each_place(from, visit)
  local looked, skipped, step = 0, 0, 4
  while looked < LOOKED_MAX and skipped < SKIPPED_MAX do
    local found = call('ZRANGEBYSCORE', line, from, '(' .. TIMES, 'WITHSCORES', 'LIMIT', 0, step)
    for i = 1, #found, 2 do
      local place = place_of(found[i])
      local sign = place and tonumber(call('ZSCORE', line, 's' .. place.claim) or 0)
      local lives = sign and sign > now
      if lives and owes(place, sign) then
        skipped = skipped + 1
      else
        looked = looked + 1
        if lives and not (me and place.claim == me.claim) and visit(place, sign)
            or looked >= LOOKED_MAX then
          return
        end
      end
    end
    if #found < step * 2 then return end
    step, from = math.min(step * 4, LOOKED_MAX), '(' .. found[#found]
  end
end

-- Whether a word about when to look was heard by somebody who is likely to live.
local function hears(place, sign, rest)
  local heard = tell(place.channel, 'first ' .. place.claim .. ' ' .. rest)
  return not heard or heard > 0 and sign > now + LIVES_US - STALE_US
end

-- Tells those from this joining number on when to look, until so many hear it: the holder before
-- them may never confirm.
local function tell_line(from, rest, most)
  local reached = 0
  each_place(from, function(place, sign)
    if hears(place, sign, rest) then reached = reached + 1 end
    return reached >= most
  end)
end

-- Whether a sign of life is so young that its place need not be asked.
local function is_fresh(place, sign)
  return sign >= now + LIVES_US - math.min(FRESH_US, math.floor(place.ttl / 3) * 500)
end

-- Asks the line from this joining number on for a sign of life, so that dead places cost one claim
-- lease together and not one each (R11).
local function ask_the_line(from)
  local reached = 0
  each_place(from, function(place, sign)
    -- Whoever waits for an upgrade lives: its hold does.
    if place.hold ~= '-' or is_fresh(place, sign) then return false end
    local heard = tell(place.channel, 'alive ' .. place.claim)
    -- Who cannot be asked owes no answer.
    if not heard then return true end
    local noted = redis.pcall('ZADD', line, text(now + LIVES_US), 'a' .. place.claim)
    -- A full server notes no question: the line moves as it would without one.
    if type(noted) ~= 'number' then return true end
    questioned = true
    if heard > 0 then reached = reached + 1 end
    return reached >= ASKED_MAX
  end)
end

local function settle()
  end_what_is_over()
  queue, pause = false, nil
  local told, deaf, asked, from = false, false, false, '-inf'
  while marked do
    local found = call('ZRANGEBYSCORE', line, from, '(' .. TIMES, 'WITHSCORES', 'LIMIT', 0, 1)
    local head, score = found[1], found[2]
    if not head then
      if from ~= '-inf' then return end
      call('ZREMRANGEBYSCORE', line, TIMES, now)
      marked = call('ZCARD', line) > 0
      return
    end
    local place, newer = place_of(head)
    if newer then
      -- What is done already stays done; whoever has changed nothing yet is told.
      if not changed then misread(newer, line) end
      queue = true
      return
    end
    local sign = place and tonumber(call('ZSCORE', line, 's' .. place.claim) or 0)
    local can, never, answers_by = false, true, nil
    if sign and sign > now then
      -- A sign of life from the future: the clock was set back (D2), and nobody would notice that
      -- the place is dead.
      if sign > now + LIVES_US then
        sign = now + LIVES_US
        call('ZADD', line, 'XX', text(sign), 's' .. place.claim)
      end
      can, never = fits(place)
    end
    local mine = place and me and place.claim == me.claim
    if not never and not (mine or place.hold ~= '-') then answers_by = owes(place, sign) end
    if can and lapsed and not asked and not answers_by
        and (mine or place.hold == '-' and not is_fresh(place, sign)) then
      asked = true
      ask_the_line(score)
      if not mine then answers_by = owes(place, sign) end
    end
    if never then
      call('ZREM', line, head, place and 's' .. place.claim or head, place and 'a' .. place.claim
          or head)
      changed = true
    elseif answers_by and answers_by <= now then
      -- It was asked and is silent: it keeps its place, and the lock goes past it until it gives a
      -- sign.
      from = '(' .. score
    elseif not can then
      queue = true
      -- Who is first now has to know when the one before it must have confirmed: that one may be
      -- dead.
      if told then
        local rest = blocker()
        if deaf then
          -- Where one is known to be dead others may be, and whoever is told might be one of them.
          tell_line(score, rest, ASKED_MAX)
        elseif not hears(place, sign, rest) then
          tell_line('(' .. score, rest, 1)
        end
      end
      return
    elseif answers_by then
      queue, pause = true, math.ceil((answers_by - now) / 1000)
      -- Who answered while the lock was held does not know that it is free.
      if told or not lapsed then tell_line(score, text(pause), ASKED_MAX) end
      return
    else
      call('ZREM', line, head, 's' .. place.claim, 'a' .. place.claim)
      local lease = place.ttl
      if not mine then lease = math.min(CLAIM_LEASE_MS, math.floor(lease / 3)) end
      local holder
      if place.hold ~= '-' then
        -- Its hold is being renewed already, so no claim lease: what is left of it goes on.
        holder = upgrade(place, mine and lease or nil)
        lease = left
      else
        holder = put(place, lease)
      end
      if mine then
        granted = holder
      else
        told = true
        local heard = tell(place.channel, 'granted ' .. place.claim .. ' ' .. text(holder.number)
            .. ' ' .. text(now) .. ' ' .. text(lease))
        deaf = deaf or heard == 0
        unheard = unheard or heard == 0
      end
    end
  end
end
