-- RPermitExpirableSemaphore.setPermits. KEYS: counter, permits. ARGV: channel limit
local free = tonumber(redis.call('GET', KEYS[1]) or '')
local more = tonumber(ARGV[2]) - (free or 0) - redis.call('ZCARD', KEYS[2])
if more ~= 0 or not free then
  wake(ARGV[1], string.format('%.0f', redis.call('INCRBY', KEYS[1], more)))
end
return {'D', '1'}
