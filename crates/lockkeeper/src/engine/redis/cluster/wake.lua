-- Wakes whoever listens to a channel, on a node of a cluster. Redisson listens to sharded channels
-- there, from 3.22 on, where the nodes are Redis 7 or newer; older ones have no such command. Where
-- this user may not publish, what was freed is free all the same, and waiters look by themselves.
local function wake(channel, message)
  redis.pcall('PUBLISH', channel, message)
  redis.pcall('SPUBLISH', channel, message)
end
