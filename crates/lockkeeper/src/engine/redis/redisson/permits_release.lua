-- RPermitExpirableSemaphore. KEYS: counter, permits. ARGV: channel ids
local function bytes(hex) return (string.gsub(hex, '%x%x', function(pair) return string.char(tonumber(pair, 16)) end)) end
local freed = 0
for i = 2, #ARGV do freed = freed + redis.call('ZREM', KEYS[2], bytes(ARGV[i])) end
if freed == 0 then return {'X'} end
redis.call('PUBLISH', ARGV[1], string.format('%.0f', redis.call('INCRBY', KEYS[1], freed)))
return {'D'}
