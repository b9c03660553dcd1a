-- Wakes whoever listens to a channel; answers how many heard of it. Where this user may not publish
-- (-1), what was freed is free all the same, and waiters look by themselves.
local function wake(channel, message)
  local heard = redis.pcall('PUBLISH', channel, message)
  return type(heard) == 'number' and heard or -1
end
