-- RLock, RFencedLock, RFairLock and the write half: the hash has our field.
local function ours(key, owner) return redis.pcall('HEXISTS', key, owner) == 1 end
