-- Semaphores. KEYS: counter, permits. ARGV: channel id count
local freed, ids = 0, permits_of(ARGV[2], tonumber(ARGV[3]))
for i = 1, #ids, 1000 do
  freed = freed + redis.call('ZREM', KEYS[2], unpack(ids, i, math.min(i + 999, #ids)))
end
if freed == 0 then return {'X'} end
wake(ARGV[1], string.format('%.0f', redis.call('INCRBY', KEYS[1], freed)))
return {'D'}
