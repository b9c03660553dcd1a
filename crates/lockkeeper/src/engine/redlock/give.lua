-- Deletes our record, and hands it on, or tells one claim alone, or nobody; never by the name
-- alone. A record that a later round wrote stays: this request was delayed, and its claim has asked
-- again since. Whoever waits stands in line from then on, and else no more.
-- KEYS: record line turn. ARGV: claim round first [channel [claim first]]; without a first it waits
-- no more
local held, claim = read(KEYS[1]), ARGV[1]
local ours = held and held.claim == claim and held.round <= tonumber(ARGV[2])
if ARGV[3] == '' then
  redis.call('ZREM', KEYS[2], claim)
else
  stand(KEYS[2], claim, ARGV[3])
end
local its_turn = string.sub(redis.call('GET', KEYS[3]) or '', 1, #claim) == claim
if ours then redis.call('DEL', KEYS[1]) end
local heard = '0'
if (ours or its_turn and not held) and ARGV[5] then
  tell(KEYS[3], ARGV[4], '-', ARGV[5], ARGV[6])
elseif (ours or its_turn and not held) and ARGV[4] then
  heard = hand_on(KEYS[2], KEYS[3], ARGV[4], claim)
elseif its_turn then
  redis.call('DEL', KEYS[3])
end
return {ours and 'D' or 'N', heard}
