-- RFairLock. KEYS: hash, queue, deadlines. ARGV: owner channel
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREM', KEYS[3], ARGV[1])
local waited = redis.call('LREM', KEYS[2], 0, ARGV[1])
local held = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
if held then redis.call('DEL', KEYS[1]) end
while true do
  local head = redis.call('LINDEX', KEYS[2], 0)
  if not head then break end
  local deadline = redis.call('ZSCORE', KEYS[3], head)
  if deadline and tonumber(deadline) > ms then
    if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('PUBLISH', ARGV[2] .. ':' .. head, '0') end
    break
  end
  redis.call('ZREM', KEYS[3], head)
  redis.call('LPOP', KEYS[2])
end
return {(held or waited > 0) and 'D' or 'X'}
