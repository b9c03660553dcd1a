-- Takes it away from these claims, or from anybody if none is named. Those stand in no line.
-- KEYS: record readers line signs turn. ARGV: channel claims…
local gone, meant, read = nil, {}, '2 readers'
for i = 2, #ARGV do
  meant[ARGV[i]] = true
  leave(KEYS[3], KEYS[4], ARGV[i])
end
local text = redis.call('GET', KEYS[1])
local claim = text and string.match(text, '^%d+ (%x+) ')
if text and text ~= read and (not ARGV[2] or meant[claim]) then
  redis.call('DEL', KEYS[1])
  gone = claim or '-'
  leave(KEYS[3], KEYS[4], gone)
end
for _, claim in ipairs(redis.call('HKEYS', KEYS[2])) do
  if (not ARGV[2] or meant[claim]) and redis.call('HDEL', KEYS[2], claim) == 1 then
    gone = claim
    leave(KEYS[3], KEYS[4], gone)
  end
end
if text == read and redis.call('HLEN', KEYS[2]) == 0 then redis.call('DEL', KEYS[1]) end
-- Here it may have given it back already, or have had a turn without a record.
local now, turn = clock(), nil
local its = turn_of(KEYS[5], now)
if its and meant[its.claim] then turn = its.claim end
if gone or turn and redis.call('EXISTS', KEYS[1]) == 0 then
  hand_on(KEYS[3], KEYS[4], KEYS[5], ARGV[1], gone or turn, now)
elseif turn then
  redis.call('DEL', KEYS[5])
end
return {'D', gone and '1' or '0'}
