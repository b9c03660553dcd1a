-- Deletes our record, and hands it on, or tells one claim alone, or nobody; never by the name
-- alone. A record that a later round wrote stays: this request was delayed, and its claim has asked
-- again since. Whoever waits, and gives back what it had there, stands in line from then on.
-- KEYS: record line signs turn. ARGV: claim round first [channel [claim first]]; without a first it
-- waits no more. Answers who waits for it: 1 is added for those in line, 2 for readers.
local held, now = read(KEYS[1]), clock()
local ours = held and held.claim == claim and held.round <= tonumber(ARGV[2])
local turn = turn_of(KEYS[4], now)
local its_turn = turn and turn.claim == claim
if ARGV[3] == '' then
  leave(KEYS[2], KEYS[3], claim)
elseif ours or its_turn then
  stand(KEYS[2], KEYS[3], claim, ARGV[3], now)
end
if ours then redis.call('DEL', KEYS[1]) end
local free, waits = ours or its_turn and redis.call('EXISTS', KEYS[1]) == 0, 0
if free and ARGV[5] then
  cede(KEYS[2], KEYS[3], KEYS[4], ARGV[4], now, ARGV[5], ARGV[6])
elseif free and ARGV[4] then
  local readers = redis.call('GET', KEYS[4]) == READERS_WAIT and 2 or 0
  waits = readers + select(2, hand_on(KEYS[2], KEYS[3], KEYS[4], ARGV[4], claim, now))
elseif its_turn then
  redis.call('DEL', KEYS[4])
end
return {ours and 'D' or 'N', whole(waits)}
