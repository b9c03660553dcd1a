-- What every script does first: end what is over, skip dead places, grant to the head(s) of the
-- line, tell them. So whoever touches a lock moves its line, and any client may die at any point.
--
-- record  one holder: a string, whose time to live is the lease and the delay after it:
--             1 claim mode count number ttl_ms delay_ms since_us channel conversion who
--             conversion: the since_us of the last one that was granted, which rises from each
--               conversion of a hold to the next
--         several: a hash, a field a claim: deadline_us and the same text; and '=': version used
--           upgradable earliest_us
-- line    a sorted set. A place: score = joining number (0: an upgrade),
--             1 claim mode count ttl_ms delay_ms since_us channel hold who
--         its sign of life: 's' and the claim, score = until when it lives; 'w' and a claim:
--           withdrawn, refuse it until then
--         a question: 'a' and the claim, score = the sign of life that a place has which answered
--           at the instant it was asked
-- last    version:number:flags, for a semaphore version:limit:flags; flag w: somebody may stand in
--         line; flag q: somebody there may have been asked for a sign of life; flag d: nobody heard
--         of a grant that was pushed, and its claim lease is waited for
-- watch   there while somebody watches this name, who says so again every five seconds; also the
--         channel that tells of changes
local call = redis.call
local LIVES_US, CLAIM_LEASE_MS, PLACES_MAX, KEEP_S = 15000000, 2000, 16384, 604800
local TIMES = '1000000000000' -- scores from here on are times, below are joining numbers
-- A place that was asked for a sign of life is waited for this long. One whose sign is younger than
-- FRESH_US, or than half its claim lease if that is shorter, is not asked.
local WINDOW_US, FRESH_US = 500000, 750000
-- A place whose sign is older than STALE_US missed its net check (5 s at most), and may be dead.
local STALE_US = 6000000
-- How many places one question reaches, how many one script looks at for it, and how many that owe
-- an answer already it skips.
local ASKED_MAX, LOOKED_MAX, SKIPPED_MAX = 64, 256, 4096

local record, line, last, watch
local one, many            -- who holds it: one holder, several, or nobody
local left                 -- milliseconds until the one holder's lease is over
local stored, flags        -- what `last` says
local queue                -- somebody stands in line
local marked               -- the line holds something: places or withdrawals
local questioned           -- somebody in line may have been asked for a sign of life
local unheard              -- nobody heard of a grant to a holder that is there
local dirty, changed       -- `last` has to be written; watchers have to be told
-- nobody gave the lock back: it was free already, or a lease ran out, when this script came
local lapsed
-- milliseconds for which a place that was asked is still waited for, and nobody behind it gets the
-- lock
local pause
local me, granted          -- the claim that this call is about, and what it got

-- A word to others is a hint: a user who may not send it loses the speed and not the lock. Redis
-- does not undo half a script. Answers how many heard it, nil where it may not be sent. Nobody: the
-- process is dead, or its connection is.
local function tell(channel, word)
  local heard = redis.pcall('PUBLISH', channel, word)
  return type(heard) == 'number' and heard or nil
end

local function fail(code, detail) error('LOCKKEEPER ' .. code .. ' ' .. detail, 0) end

-- A record that does not read: only a greater layout number is a newer release's, everything else
-- is damage.
local function misread(version, key)
  if version and tonumber(version) > 1 then fail('NEWER', version) end
  fail('CORRUPT', key)
end

local function tick() return math.floor((now - 1767225600000000) / 16) end

local function holder_of(value)
  local version, claim, mode, count, number, ttl, delay, since, channel, conversion, who =
    string.match(value, '^(%d+) (%x+) (%a) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+)$')
  if version ~= '1' then misread(string.match(value, '^(%d+) %x+ '), record) end
  return {claim = claim, mode = mode, count = tonumber(count), number = tonumber(number),
      ttl = tonumber(ttl), delay = tonumber(delay),
    since = since, channel = channel, conversion = conversion, who = who}
end

local function holder_text(h)
  return '1 ' .. h.claim .. ' ' .. h.mode .. ' ' .. h.count .. ' ' .. text(h.number) .. ' '
      .. text(h.ttl) .. ' ' .. text(h.delay) .. ' '
    .. h.since .. ' ' .. h.channel .. ' ' .. h.conversion .. ' ' .. h.who
end

local function place_of(member)
  local version, claim, mode, count, ttl, delay, since, channel, hold, who =
    string.match(member, '^(%d+) (%x+) (%a) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+)$')
  if not version then return nil end
  if version ~= '1' then return nil, version end
  return {member = member, claim = claim, mode = mode, count = tonumber(count),
      ttl = tonumber(ttl), delay = tonumber(delay),
    since = since, channel = channel, hold = hold, who = who}
end

-- Reads everything, and so checks every key's type, before the first write: Redis does not undo
-- half a script.
local function load(keys, at, values)
  record, line, last, watch = keys[at], keys[at + 1], keys[at + 2], values[3] and keys[at + 3]
  one, many, left, stored, flags, queue, marked, dirty, changed = nil, nil, nil, 0, '', false,
      false, false, false
  lapsed, pause, questioned, unheard = false, nil, false, false
  if values[2] then
    local version, number, marks = string.match(values[2], '^(%d+):(%d+):(%a*)$')
    if version ~= '1' then misread(version, last) end
    stored, flags, questioned = tonumber(number), marks, string.find(marks, 'q', 1, true) ~= nil
    unheard = string.find(marks, 'd', 1, true) ~= nil
  elseif call('EXISTS', last) == 1 then
    -- MGET shows a key of another type as none.
    fail('TYPE', last)
  end
  if values[1] then
    one = holder_of(values[1])
    left = call('PTTL', record)
  else
    local summary = call('HGET', record, '=')
    if summary then
      local version, used, up, earliest = string.match(summary, '^(%d+) (%d+) (%S+) (%d+)$')
      if version ~= '1' then misread(version, record) end
      many = {used = tonumber(used), up = up, earliest = tonumber(earliest)}
    elseif call('EXISTS', record) == 1 then
      fail('CORRUPT', record)
    end
  end
  marked = call('ZCARD', line) > 0
  unheard = unheard and marked
  if one then
    if left < 0 or left > one.ttl + one.delay then
      -- Somebody took the time to live away, or the server's clock was set back (D2): a dead holder
      -- would keep the lock for as long. No lease has more left than it began with.
      left = one.ttl + one.delay
      call('PEXPIRE', record, left)
    end
    left = left - one.delay
  end
  -- Whoever gives the lock back grants it in the same script: where places wait beside a free lock,
  -- a lease ran out.
  lapsed = not one and not many
end

local function summarise()
  call('HSET', record, '=', '1 ' .. text(many.used) .. ' ' .. many.up .. ' ' .. text(many.earliest))
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
    since = text(now), channel = place.channel, conversion = '-', who = place.who}
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
    call('PEXPIRE', record, left + one.delay)
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
  holder.mode, holder.conversion, holder.number, holder.ttl = 'x', place.since, next_number(),
      place.ttl
  one, left, changed = holder, lease or rest, true
  call('SET', record, holder_text(holder), 'PX', left + holder.delay)
  return holder
end

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
      if not changed then fail('NEWER', newer) end
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

-- Writes `last`, and tells those who watch.
local function finish()
  local marks = marked and 'w' .. (questioned and 'q' or '') .. (unheard and 'd' or '') or ''
  if dirty or marks ~= flags then
    call('SET', last, '1:' .. text(stored) .. ':' .. marks, 'EX', KEEP_S)
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
  call('ZREMRANGEBYSCORE', line, TIMES, now)
  call('ZADD', line, text(until_us), 'w' .. claim)
  local ms = math.ceil((until_us - now) / 1000)
  if call('PTTL', line) < ms then call('PEXPIRE', line, ms) end
  marked = true
end

local function granted_reply(holder)
  return {'G', text(now), text(holder.number), text(holder.ttl)}
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
end

-- The limit that is stored is the one that counts; the first to come stores its own. Whoever stands
-- already is spared when it changes, unless there will never be enough.
local function limit_differs(place)
  if place.mode ~= 'p' then return nil end
  if stored == 0 then stored, dirty = place.limit, true end
  if stored == place.limit then return nil end
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

-- The place that arguments from `at` on describe.
local function place_at(at)
  return {claim = ARGV[at], mode = ARGV[at + 1], count = tonumber(ARGV[at + 2]),
      limit = tonumber(ARGV[at + 3]), ttl = tonumber(ARGV[at + 4]),
    delay = tonumber(ARGV[at + 5]), since = ARGV[at + 6], channel = ARGV[at + 7],
        hold = ARGV[at + 8], who = ARGV[at + 9],
    member = '1 ' .. ARGV[at] .. ' ' .. ARGV[at + 1] .. ' ' .. ARGV[at + 2] .. ' ' .. ARGV[at + 4]
        .. ' ' .. ARGV[at + 5] .. ' ' .. ARGV[at + 6]
      .. ' ' .. ARGV[at + 7] .. ' ' .. ARGV[at + 8] .. ' ' .. ARGV[at + 9]}
end
