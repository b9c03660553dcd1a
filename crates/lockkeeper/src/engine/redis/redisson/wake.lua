-- Wakes whoever listens to a channel.
local function wake(channel, message)
  redis.call('PUBLISH', channel, message)
end
