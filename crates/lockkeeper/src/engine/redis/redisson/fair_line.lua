-- The queue of an RFairLock. KEYS: hash, queue, deadlines, signs of life. Needs ms.
-- Deadlines are Java's: each place adds five minutes to the one before it, and whoever acquires or
-- leaves takes them off those behind it. Ours have signs of life besides, which Java does not read,
-- so that our dead are skipped sooner.
local JAVA_WAIT = 300000
local function lives(owner)
  local life = redis.call('ZSCORE', KEYS[4], owner)
  if life then return tonumber(life) > ms end
  -- A place without a deadline would never be skipped: Redisson stalls on it.
  local deadline = redis.call('ZSCORE', KEYS[3], owner)
  return deadline and tonumber(deadline) > ms
end
local function forget(owner)
  redis.call('ZREM', KEYS[3], owner)
  return redis.call('ZREM', KEYS[4], owner) == 1
end
-- Those from this place on move up.
local function move_up(from)
  for _, owner in ipairs(redis.call('LRANGE', KEYS[2], from, -1)) do
    redis.call('ZADD', KEYS[3], 'XX', 'INCR', -JAVA_WAIT, owner)
  end
end
-- Skips the dead; whoever asks lives.
local function head_of_line(asks)
  while true do
    local head = redis.call('LINDEX', KEYS[2], 0)
    if not head or head == asks or lives(head) then return head end
    redis.call('LPOP', KEYS[2])
    if forget(head) then move_up(0) end
  end
end
local function place_of(owner)
  for at, other in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) do
    if other == owner then return at - 1 end
  end
end
-- Its place, which it gets once, and a sign of life. `left`: of the holder's lease; `wait`: beyond.
local function stand(owner, left, wait)
  local until_free, ahead = ms + math.max(left, 0), place_of(owner)
  if not ahead then ahead = redis.call('RPUSH', KEYS[2], owner) - 1 end
  -- As late as Java would have it for this place, also after a long wait.
  local floor, deadline = until_free + (ahead + 1) * JAVA_WAIT, redis.call('ZSCORE', KEYS[3], owner)
  if not deadline or tonumber(deadline) < floor then redis.call('ZADD', KEYS[3], floor, owner) end
  redis.call('ZADD', KEYS[4], until_free + wait, owner)
  redis.call('PEXPIRE', KEYS[4], math.max(left, 0) + 12 * JAVA_WAIT)
end
