-- RCountDownLatch. KEYS: counter. ARGV: set, down or look, count, channel
if ARGV[1] == 'look' then return {redis.call('GET', KEYS[1]) or '', {}} end
if ARGV[1] == 'set' then
  if redis.call('EXISTS', KEYS[1]) == 1 then return {'D', '0'} end
  redis.call('SET', KEYS[1], ARGV[2])
  redis.call('PUBLISH', ARGV[3], '1')
  return {'D', '1'}
end
if redis.call('EXISTS', KEYS[1]) == 0 then return {'D', '1'} end
local count = redis.call('DECR', KEYS[1])
if count <= 0 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[3], '0')
  return {'D', '1'}
end
return {'D', '0'}
