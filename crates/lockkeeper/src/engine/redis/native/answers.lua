-- What a script says and leaves behind: `last` and its flags, who is waited for, a place in line;
-- and asking for the lock.

-- Writes `last`, and tells those who watch.
local function finish()
  local marks = (limited and 'l' or '')
      .. (marked and 'w' .. (questioned and 'q' or '') .. (unheard and 'd' or '') or '')
      .. (watch and 'o' or '')
  if dirty or marks ~= flags then
    local kept = text(stored)
    kept = marks == '' and kept or '2:' .. kept .. ':' .. marks
    -- A flag that stays too long costs time alone: a full server refuses no answer because of it.
    local fewer = not dirty
        and (marks == '' or flags ~= '' and not string.find(marks, '[^' .. flags .. ']'))
    local done = (fewer and redis.pcall or call)('SET', last, kept, 'EX', KEEP_S)
    if done.err and longer then call('EXPIRE', last, KEEP_S) end
  elseif longer then
    call('EXPIRE', last, KEEP_S)
  end
  if changed and watch then tell(watch, record) end
end

-- Who is waited for, and until when at most, in milliseconds.
function blocker()
  if one then return text(math.max(left + one.delay, 0)), holder_text(one) end
  if not many then return '0', '' end
  local shown = ''
  if many.up ~= '-' then
    shown = call('HGET', record, many.up) or ''
  elseif call('HLEN', record) <= 33 then
    local all = call('HGETALL', record)
    for i = 1, #all, 2 do
      if all[i] ~= '=' then shown = all[i + 1] end
    end
  end
  return text(math.max(math.ceil((many.earliest - now) / 1000), 0)),
      (string.gsub(shown, '^%d+ ', '', 1))
end

-- A request of this claim may still be on its way over a connection that broke: it must find that
-- its caller has left.
local function refuse(claim, until_us)
  if until_us <= now then return end
  -- No request is in time for as long, unless its process did not know the clock yet.
  until_us = math.min(until_us, now + REFUSED_MAX_US)
  call('ZREMRANGEBYSCORE', line, TIMES, now)
  call('ZADD', line, text(until_us), 'w' .. claim)
  local ms = math.ceil((until_us - now) / 1000)
  if call('PTTL', line) < ms then call('PEXPIRE', line, ms) end
  marked, longer = true, true
end

-- With a word where something is there beside it that the short way would not pass.
local function granted_reply(holder)
  local beside = (many or marked or watch) and 'W' or nil
  return {'G', text(now), text(holder.number), text(holder.ttl), beside}
end

-- Whether the only holder was told of its grant a moment ago and has not confirmed it yet; out of
-- several, one may have been.
local function unconfirmed()
  if not one then return many and many.earliest - now <= CLAIM_LEASE_MS * 1000 end
  return (now - tonumber(one.since)) / 1000 + left <= math.min(CLAIM_LEASE_MS,
      math.floor(one.ttl / 3)) + 5
end

-- Whether the line moves: its only holder is about to confirm, or one of several is, or ends as
-- soon.
local function moves()
  if not one then return not many or unconfirmed() end
  return left > math.min(CLAIM_LEASE_MS, math.floor(one.ttl / 3)) / 2 and unconfirmed()
end

-- Standing in line: how many are before it, who is waited for, and when to ask. '0': when that
-- one's time is over. '1': one claim lease later, for whoever is before it comes first and may be
-- dead. '-': a line that moves moves without it, the net is enough.
local function in_line(score)
  local rest, shown = blocker()
  local ahead = call('ZCOUNT', line, '-inf', '(' .. text(score))
  local turn = ahead == 0 and '0' or '1'
  if pause then
    rest, turn = text(pause), '0'
  elseif unheard and unconfirmed() then
    -- Others may be dead as well, and whoever joined since was told nothing.
    turn = '0'
  elseif ahead > 1 and moves() then
    turn = '-'
  end
  return {'L', text(now), text(ahead), rest, shown, turn}
end

-- A sign of life: the place lives on, and the line with it.
local function live(place)
  call('ZADD', line, text(now + LIVES_US), 's' .. place.claim)
  call('PEXPIRE', line, LIVES_US / 1000 + 5000)
  longer = true
end

-- The limit that is stored is the one that counts; the first to come stores its own. Whoever stands
-- already is spared when it changes, unless there will never be enough.
local function limit_differs(place)
  if place.mode ~= 'p' then return nil end
  local limit = tonumber(place.limit)
  if stored == 0 then stored, dirty = limit, true end
  limited = true
  if stored == limit then return nil end
  if marked and call('ZSCORE', line, place.member) then
    if place.count <= stored then return nil end
    call('ZREM', line, place.member, 's' .. place.claim, 'a' .. place.claim)
    changed = true
  end
  return {'M', text(now), text(stored)}
end

-- Asks for the lock: granted, standing in line, or busy. The second time it does what the first did
-- (R3).
local function stand(place, how)
  me = place
  if marked and call('ZSCORE', line, 'w' .. place.claim) then return {'T', text(now)} end
  end_what_is_over()
  local holder, deadline = one_of(place.claim)
  if one and one.claim == place.claim and left <= 0 or holder and deadline <= now then
    -- It was granted, took no notice in time, and its delay goes on: after that it stands again.
    settle()
    if how ~= 'try' then return in_line(0) end
    local rest, shown = blocker()
    return {'B', text(now), rest, shown}
  end
  if one and one.claim == place.claim then
    -- Written once more, or a WAIT behind it would wait for nothing: perhaps it was another's
    -- release that gave it.
    call('PEXPIRE', record, one.ttl + one.delay)
    return granted_reply(one)
  end
  if holder then
    call('HSET', record, place.claim, text(now + holder.ttl * 1000) .. ' ' .. holder_text(holder))
    outlive(now + (holder.ttl + holder.delay) * 1000)
    return granted_reply(holder)
  end
  local differs = limit_differs(place)
  settle()
  if differs then return differs end
  if granted then return granted_reply(granted) end
  local score = marked and call('ZSCORE', line, place.member)
  if score then
    live(place)
    return in_line(tonumber(score))
  end
  if not queue and fits(place) then return granted_reply(put(place, place.ttl)) end
  if how == 'try' then
    local rest, shown = blocker()
    return {'B', text(now), rest, shown}
  end
  local tail = call('ZREVRANGEBYSCORE', line, '(' .. TIMES, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if call('ZCOUNT', line, '-inf', '(' .. TIMES) >= PLACES_MAX then return {'F', text(now)} end
  score = (tail[2] and tonumber(tail[2]) or 0) + 1
  call('ZADD', line, text(score), place.member)
  live(place)
  marked, changed = true, true
  return in_line(score)
end
