-- The line of those that wait to have a name alone: their claims, ordered as contenders are. It
-- gives nobody anything: whose turn it is keeps others out for a moment, and each member has a line
-- of its own. It is forgotten when nobody who waits has asked for so long.
local PLACE_MS = 20000
-- For how long it is somebody's turn.
local TURN_MS = 250
local function stand(line, claim, first)
  redis.call('ZADD', line, first, claim)
  redis.call('PEXPIRE', line, PLACE_MS)
end
-- Whose turn it is, if it is another's: its claim, when that was first asked for, and for how many
-- milliseconds it is still.
local function turn_of_another(turn, claim)
  local one, first = string.match(redis.call('GET', turn) or '', '^(%x+) (%d+)$')
  if not one or one == claim then return end
  local left = redis.call('PTTL', turn)
  -- A clock that was set back keeps nobody out for longer.
  if left < 0 or left > TURN_MS then
    redis.call('PEXPIRE', turn, TURN_MS)
    left = TURN_MS
  end
  return one, first, left
end
-- It is this claim's turn, if anybody hears that; `nil`: it is told to all. Gives how many heard.
-- Where this user may not publish, waiters look by themselves.
local function tell(turn, channel, giver, claim, first)
  local heard = redis.pcall('PUBLISH', channel, claim and giver .. ' ' .. claim or giver)
  heard = type(heard) == 'number' and heard or 0
  if claim and heard > 0 then
    redis.call('SET', turn, claim .. ' ' .. first, 'PX', TURN_MS)
  else
    redis.call('DEL', turn)
  end
  return heard
end
-- It was given back: the first in line has its turn. Gives how many heard who stand in no line.
local function hand_on(line, turn, channel, giver)
  local next = redis.call('ZRANGE', line, 0, 0, 'WITHSCORES')
  if next[1] then redis.call('ZREM', line, next[1]) end
  local first = string.format('%.0f', tonumber(next[2] or '0'))
  local heard = tell(turn, channel, giver, next[1], first)
  return string.format('%.0f', next[1] and 0 or heard)
end
