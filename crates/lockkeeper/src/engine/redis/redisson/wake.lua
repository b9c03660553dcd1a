-- Wakes whoever listens to a channel. Where this user may not publish, what was freed is free all
-- the same, and waiters look by themselves.
local function wake(channel, message)
  redis.pcall('PUBLISH', channel, message)
end
