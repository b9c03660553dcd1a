-- RLock and RFencedLock. KEYS: hash. ARGV: owner channel
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return {'X'} end
redis.call('DEL', KEYS[1])
return {'D', wake(ARGV[2], '0')}
