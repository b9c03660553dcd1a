-- Deletes the record of a reader, as give does, and tells the waiters if nobody reads any more.
-- KEYS: record readers line signs turn. ARGV: claim round [channel [claim first]]
local now = clock()
local held = reading(KEYS[2], ARGV[1], now)
if not held or held.round > tonumber(ARGV[2]) then return {'N'} end
redis.call('HDEL', KEYS[2], ARGV[1])
if is_read(KEYS[2], now) then return {'D', '0'} end
if redis.call('GET', KEYS[1]) == READ then redis.call('DEL', KEYS[1]) end
if not ARGV[3] then return {'D', '0'} end
if ARGV[4] then
  cede(KEYS[3], KEYS[4], KEYS[5], ARGV[3], now, ARGV[4], ARGV[5])
  return {'D', '0'}
end
return {'D', whole(select(2, hand_on(KEYS[3], KEYS[4], KEYS[5], ARGV[3], ARGV[1], now)))}
