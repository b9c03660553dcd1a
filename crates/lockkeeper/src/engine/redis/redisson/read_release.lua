-- The read half of RReadWriteLock. KEYS: hash, our timeout key. ARGV: owner channel prefix
local ours = redis.call('HGET', KEYS[1], 'mode') and redis.call('HDEL', KEYS[1], ARGV[1]) == 1
redis.call('DEL', KEYS[2])
if not ours then return {'X'} end
if redis.call('HLEN', KEYS[1]) > 1 then
  -- The hash lives as long as the longest of the holds that are left.
  local longest, all = -1, redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if all[i] ~= 'mode' then
      for n = 1, tonumber(all[i + 1]) or 0 do
        longest = math.max(longest, redis.call('PTTL', ARGV[3] .. all[i] .. ':rwlock_timeout:'
            .. n))
      end
    end
  end
  if longest > 0 then
    redis.call('PEXPIRE', KEYS[1], longest)
    return {'D'}
  end
  if redis.call('HGET', KEYS[1], 'mode') == 'write' then return {'D'} end
end
redis.call('DEL', KEYS[1])
return {'D', wake(ARGV[2], '0')}
