-- Semaphores, one hold a call. KEYS: permits. ARGV: ttl_ms id count
local ids = permits_of(ARGV[2], tonumber(ARGV[3]))
-- They end together, and only what is over is cleared away, so that the first speaks for all.
local score = redis.call('ZSCORE', KEYS[1], ids[1])
if not score or tonumber(score) <= ms then return {'X'} end
put(KEYS[1], 'XX', string.format('%.0f', ms + ARGV[1]), ids)
return {'D'}
