-- What the keys of a name hold, and reading it. In front of holders, settle and answers.
--
-- record  one holder: a string, whose time to live is the lease and the delay after it:
--             2 claim delay_ms mode count ttl_ms channel who asked_us limit hold number
--             and behind that, unless take.lua or give.lua wrote it: since_us conversion
--             What never changes for a claim comes first: its place, which take.lua writes down as
--             it came. A number that it gave is its time, too.
--             conversion: the asked_us of the last one that was granted, which rises from each
--               conversion of a hold to the next
--         several: a hash, a field a claim: deadline_us and the same text; and '=': version used
--           upgradable earliest_us
-- line    a sorted set. A place: score = joining number (0: an upgrade),
--             2 claim delay_ms mode count ttl_ms channel who asked_us limit hold
--         its sign of life: 's' and the claim, score = until when it lives; 'w' and a claim:
--           withdrawn, refuse it until then
--         a question: 'a' and the claim, score = the sign of life that a place has which answered
--           at the instant it was asked
-- last    the number, bare; or 2:number:flags. Flag l: it is a semaphore's limit and no number;
--         flag w: `line` may be there; flag q: somebody there may have been asked for a sign of
--         life; flag d: nobody heard of a grant that was pushed, and its claim lease is waited for;
--         flag o: `watch` may be there.
--         Layout 1 wrote 1:number:flags under the same key, so each stops at what the other left.
--         take.lua and give.lua look at nothing else beside the record. So: whatever puts something
--         into `line` sets its flag in the same script, which stands for as long as that key is
--         there, and `last` lives longer than it. The same holds of `watch`.
-- watch   there while somebody watches this name, who says so again every five seconds; also the
--         channel that tells of changes
local call = redis.call
local LIVES_US, CLAIM_LEASE_MS, PLACES_MAX, KEEP_S = 15000000, 2000, 16384, 604800
local TIMES = '1000000000000' -- scores from here on are times, below are joining numbers
-- A place that was asked for a sign of life is waited for this long. One whose sign is younger than
-- FRESH_US, or than half its claim lease if that is shorter, is not asked.
local WINDOW_US, FRESH_US = 500000, 750000
-- For how long a request is refused at most.
local REFUSED_MAX_US = 3600000000
-- A place whose sign is older than STALE_US missed its net check (5 s at most), and may be dead.
local STALE_US = 6000000
-- How many places one question reaches, how many one script looks at for it, and how many that owe
-- an answer already it skips.
local ASKED_MAX, LOOKED_MAX, SKIPPED_MAX = 64, 256, 4096

local PLACE = '^(%d+) (%x+) (%d+) (%a) (%d+) (%d+) (%S+) (%S+) (%d+) (%d+) (%S+)$'
local HOLDER = '^(%d+) (%x+) (%d+) (%a) (%d+) (%d+) (%S+) (%S+) (%d+) (%d+) (%S+) (%d+)(.*)$'

local record, line, last, watch
local one, many            -- who holds it: one holder, several, or nobody
local left                 -- milliseconds until the one holder's lease is over
local stored, flags        -- what `last` says
local queue                -- somebody stands in line
local marked               -- the line holds something: places or withdrawals
local questioned           -- somebody in line may have been asked for a sign of life
local unheard              -- nobody heard of a grant to a holder that is there
local dirty, changed       -- `last` has to be written; watchers have to be told
local limited              -- what is stored is a limit
local longer               -- `line` was given a longer life: `last` has to outlive it
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

-- A record that does not read: another layout number is another release's, everything else is
-- damage.
local function misread(version, key)
  if version and tonumber(version) > 2 then fail('NEWER', version .. ' 2') end
  if version == '1' then fail('OLDER', '1 2 ' .. key) end
  fail('CORRUPT', key)
end

local function tick() return math.floor((now - 1767225600000000) / 16) end

local function holder_of(value)
  local version, claim, delay, mode, count, ttl, channel, who, asked, limit, hold, number, rest =
    string.match(value, HOLDER)
  if version ~= '2' then misread(string.match(value, '^(%d+) %x+ '), record) end
  local since, conversion = text(number * 16 + 1767225600000000), '-'
  if rest ~= '' then
    since, conversion = string.match(rest, '^ (%d+) (%S+)$')
    if not since then fail('CORRUPT', record) end
  end
  return {claim = claim, mode = mode, count = tonumber(count), number = tonumber(number),
      ttl = tonumber(ttl), delay = tonumber(delay), channel = channel, who = who, asked = asked,
      limit = limit, hold = hold, since = since, conversion = conversion}
end

local function holder_text(h)
  return '2 ' .. h.claim .. ' ' .. text(h.delay) .. ' ' .. h.mode .. ' ' .. h.count .. ' '
      .. text(h.ttl) .. ' ' .. h.channel .. ' ' .. h.who .. ' ' .. h.asked .. ' ' .. h.limit .. ' '
      .. h.hold .. ' ' .. text(h.number) .. ' ' .. h.since .. ' ' .. h.conversion
end

local function place_of(member)
  local version, claim, delay, mode, count, ttl, channel, who, asked, limit, hold = string.match(
    member, PLACE)
  if version == '2' then
    return {member = member, claim = claim, mode = mode, count = tonumber(count),
        ttl = tonumber(ttl), delay = tonumber(delay), channel = channel, who = who, asked = asked,
        limit = limit, hold = hold}
  end
  -- Of another release; a place of ours that is only damaged is skipped.
  version = string.match(member, '^(%d+) %x+ ')
  if version ~= '2' then return nil, version end
end

-- Reads everything, and so checks every key's type, before the first write: Redis does not undo
-- half a script.
local function load(keys, at, values)
  record, line, last, watch = keys[at], keys[at + 1], keys[at + 2], values[3] and keys[at + 3]
  one, many, left, stored, flags, queue, marked, dirty, changed = nil, nil, nil, 0, '', false,
      false, false, false
  lapsed, pause, questioned, unheard, longer, limited = false, nil, false, false, false, false
  if values[2] then
    local version, number, marks = string.match(values[2], '^(%d+):(%d+):(%a*)$')
    if not version then
      version, number, marks = '2', string.match(values[2], '^%d+$'), ''
    elseif version == '2' and marks == '' then
      number = nil
    end
    if not number or version ~= '2' then misread(number and version, last) end
    -- From there on two numbers are one to Lua.
    if tonumber(number) > 9007199254740990 then fail('CORRUPT', last) end
    limited = string.find(marks, 'l', 1, true) ~= nil
    stored, flags, questioned = tonumber(number), marks, string.find(marks, 'q', 1, true) ~= nil
    unheard = string.find(marks, 'd', 1, true) ~= nil
  elseif call('EXISTS', last) == 1 then
    -- MGET shows a key of another type as none.
    fail('TYPE', last)
  end
  if values[1] then
    one = holder_of(values[1])
    left = call('PTTL', record)
    -- `last` was lost or is of an older day.
    if stored < one.number then stored, dirty = one.number, true end
  else
    local summary = call('HGET', record, '=')
    if summary then
      local version, used, up, earliest = string.match(summary, '^(%d+) (%d+) (%S+) (%d+)$')
      if version ~= '2' then misread(version, record) end
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
