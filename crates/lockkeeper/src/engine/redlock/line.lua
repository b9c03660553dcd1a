-- The line of those that wait to have a name alone, of which each member has its own. It gives
-- nobody anything: a majority of records does. Its rules:
--
-- 1. Whoever waits and is refused has a place, ordered as contenders are. Each question is a sign
--    of life; without one a place lives for PLACE. Yes, a give-back and force end it.
-- 2. Whoever gives back hands on: the first that lives leaves the line, and has its turn. The name
--    is kept free for it for TURN, and all that listen are told whose turn it is. Where nobody
--    listens nobody waits: the line is forgotten. Nobody else has a turn: one who stands in no
--    line may have left, and would keep others out.
-- 3. Is a name free and nobody's turn, then whoever stands in line may have it: it asks once those
--    before it had their time (waiter.rs). Who comes anew may not: it is the turn of the first
--    that lives.
--    One that asked before and stands in no line here comes before those that wait for less: its
--    place was lost, as where the line was evicted, or it did not answer when it had its turn, or
--    this member was not asked. The others may have it first. A turn of those that wait for less
--    does not keep it out, and whose turn it was stands in line again.
-- 4. A turn that is over is kept: whoever takes the name after it, or before others that gave a
--    sign, has found somebody dead. All have to give a sign of life anew: from then on it is the
--    turn of the first that gave one, and until there is one everybody is told. The others keep
--    their places: most live, and stand where they stood as soon as they ask.
--
-- A sign is the time at which the claim asked last. ALL is among them with the time at which all
-- were to give one anew: older ones are none since. None is older than PLACE, or later than the
-- present: those are from before the clock was set back.
--
-- A call looks at PORTION places at a time, a few times, however many there are, and forgets as
-- many: the rest is left to those that follow.
local PLACE, TURN, PLACES_MAX, PORTION, ALL = 15000000, 250000, 16384, 256, '-'
local function whole(number) return string.format('%.0f', number) end
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
local function leave(line, signs, claim)
  if redis.call('ZREM', line, claim) == 0 then return end
  redis.call('ZREM', signs, claim)
  if redis.call('EXISTS', line) == 0 then redis.call('DEL', signs) end
end
-- Those whose last sign is not after that, or of before the clock was set back.
local function drop(line, signs, to, now)
  for _, those in ipairs({{'-inf', to}, {'(' .. whole(now), '+inf'}}) do
    local some = redis.call('ZRANGEBYSCORE', signs, those[1], those[2], 'LIMIT', 0, PORTION)
    for _, claim in ipairs(some) do
      redis.call('ZREM', signs, claim)
      redis.call('ZREM', line, claim)
    end
  end
end
local function drop_old(line, signs, now) drop(line, signs, whole(now - PLACE), now) end
-- Since when a sign is one: after that.
local function since_all(signs, now)
  local at = tonumber(redis.call('ZSCORE', signs, ALL) or '0')
  if at > now then
    -- The clock was set back: nobody could give one before it is that late again.
    redis.call('ZREM', signs, ALL)
    at = 0
  end
  return math.max(at, now - PLACE)
end
-- Gives how many are before it; nothing where there is no room (R13).
local function stand(line, signs, claim, first, now)
  local anew = redis.call('ZADD', line, first, claim) == 1
  redis.call('ZADD', signs, whole(now), claim)
  if anew and redis.call('ZCARD', line) > PLACES_MAX then
    drop_old(line, signs, now)
    if redis.call('ZCARD', line) > PLACES_MAX then
      drop(line, signs, '(' .. whole(since_all(signs, now)), now)
    end
    if redis.call('ZCARD', line) > PLACES_MAX then return leave(line, signs, claim) end
  end
  redis.call('PEXPIRE', line, PLACE / 1000)
  redis.call('PEXPIRE', signs, PLACE / 1000)
  return redis.call('ZRANK', line, claim)
end
-- Whose turn it is, or was, since when that claim waits, and for how many milliseconds still.
local function turn_of(turn, now)
  local claim, first, ends = string.match(redis.call('GET', turn) or '', '^(%x+) (%d+) (%d+)$')
  if not claim then return end
  -- A clock that was set back keeps nobody out for longer.
  local left = ends - now
  if left > TURN then
    left = TURN
    redis.call('SET', turn, table.concat({claim, first, whole(now + TURN)}, ' '), 'PX', 15000)
  end
  return {claim = claim, first = first, left = math.max(0, math.ceil(left / 1000))}
end
-- It is this claim's turn, if anybody hears that; no claim: all are told. Gives how many heard;
-- nothing where this user may not publish, and waiters look by themselves.
local function tell(turn, channel, giver, now, claim, first)
  local heard = redis.pcall('PUBLISH', channel, claim and giver .. ' ' .. claim or giver)
  heard = type(heard) == 'number' and heard
  if claim and heard and heard > 0 then
    redis.call('SET', turn, table.concat({claim, first, whole(now + TURN)}, ' '), 'PX', 15000)
  else
    redis.call('DEL', turn)
  end
  return heard
end
-- The first in line that gave a sign of life since it was to, and since when it waits. Places of
-- which no sign is known, as where it was evicted, are forgotten.
local function first_that_lives(line, signs, now)
  local since = since_all(signs, now)
  local after, to = '(' .. whole(since), whole(now)
  if redis.call('ZCOUNT', signs, after, to) == 0 then return end
  for _, last in ipairs({0, 15, PORTION - 1}) do
    local some = redis.call('ZRANGE', line, 0, last, 'WITHSCORES')
    for i = 1, #some, 2 do
      local sign = redis.call('ZSCORE', signs, some[i])
      if not sign then
        redis.call('ZREM', line, some[i])
      elseif tonumber(sign) > since and tonumber(sign) <= now then
        return some[i], some[i + 1]
      end
    end
  end
  -- So many that are dead stand before it: it is the first of those that gave one last.
  local first, least
  local those = redis.call('ZREVRANGEBYSCORE', signs, to, after, 'LIMIT', 0, PORTION)
  for _, claim in ipairs(those) do
    local rank = redis.call('ZRANK', line, claim)
    if rank and (not least or rank < least) then first, least = claim, rank end
  end
  return first, first and redis.call('ZSCORE', line, first)
end
-- Takes the first from the line that gave a sign of life.
local function next_in(line, signs, now)
  drop_old(line, signs, now)
  local claim, first = first_that_lives(line, signs, now)
  if not claim then return end
  leave(line, signs, claim)
  return claim, whole(tonumber(first))
end
-- It was given up for one of those that contend. That one may have left since: where it stands in
-- no line it is told so all the same, and it is nobody's turn.
local function cede(line, signs, turn, channel, now, claim, first)
  local stands = redis.call('ZSCORE', line, claim)
  local heard = tell(turn, channel, '-', now, claim, first)
  if not stands then
    redis.call('DEL', turn)
  elseif heard and heard > 0 then
    leave(line, signs, claim)
  end
end
-- It was given back. Gives whose turn it is, and whether anybody waits in line: 1, or 0.
local function hand_on(line, signs, turn, channel, giver, now)
  local claim, first = next_in(line, signs, now)
  local heard = tell(turn, channel, giver, now, claim, first)
  if heard == 0 then
    redis.call('DEL', line, signs)
    return nil, 0
  end
  return heard and claim, (claim or redis.call('EXISTS', line) == 1) and 1 or 0
end
-- It holds, or is not to wait any more: it has no place, and it is not its turn.
local function waits_no_more(line, signs, turn, claim, now)
  leave(line, signs, claim)
  local now_is = turn_of(turn, now)
  if now_is and now_is.claim == claim then redis.call('DEL', turn) end
end
-- Whether a claim that waits since then comes before another.
local function precedes(first, claim, than, other)
  first, than = tonumber(first), tonumber(than)
  return first < than or first == than and claim < other
end
-- It has the name, and waits no more. `lost`: since when it waited, where it stood in no line. See
-- rules 3 and 4.
local function came(line, signs, turn, claim, lost, now_is, now)
  local passes = now_is and now_is.claim ~= claim
  local goes_on = passes and lost and now_is.left > 0
    and precedes(lost, claim, now_is.first, now_is.claim)
  if not now_is and (redis.call('ZRANK', line, claim) or 0) > 0 then
    -- It lives, whatever is known of it: its own place is not forgotten, and none behind it first.
    redis.call('ZADD', signs, whole(now), claim)
    local first = first_that_lives(line, signs, now)
    passes = first and first ~= claim
  end
  leave(line, signs, claim)
  if now_is then redis.call('DEL', turn) end
  if goes_on then
    -- Nobody is dead because of that.
    stand(line, signs, now_is.claim, now_is.first, now)
  elseif passes and redis.call('EXISTS', line) == 1 then
    redis.call('ZADD', signs, whole(now), ALL)
    redis.call('PEXPIRE', signs, PLACE / 1000)
  end
end
