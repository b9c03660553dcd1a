-- Says beside the last number of a name that somebody watches it, without which the short ways
-- would pass by. A script that finds the key `watch` gone takes the flag away.
-- KEYS: last. ARGV: for how long, in milliseconds.
local kept = redis.pcall('GET', KEYS[1])
if not kept then
  -- No number yet: the flag alone.
  redis.call('SET', KEYS[1], '2:0:o', 'PX', ARGV[1] + 5000)
elseif type(kept) == 'string' then
  local flagged = string.find(kept, '^2:%d+:%a+$') and kept
      or string.find(kept, '^%d+$') and '2:' .. kept .. ':'
  if flagged then
    if not string.find(flagged, 'o', 1, true) then
      redis.call('SET', KEYS[1], flagged .. 'o', 'KEEPTTL')
    end
    -- It outlives the key.
    local lives = redis.call('PTTL', KEYS[1])
    if lives >= 0 and lives < ARGV[1] + 5000 then
      redis.call('PEXPIRE', KEYS[1], ARGV[1] + 5000)
    end
  end
end
return 'OK'
