-- Permits: 16 raw bytes each in the sorted set. Those of one claim differ in the last two: its id,
-- with their number mixed in.
local function digits(raw) return (string.gsub(raw, '.',
    function(c) return string.format('%02x', string.byte(c)) end)) end
local function permits_of(hex, count)
  local head = string.gsub(string.sub(hex, 1, 28), '%x%x',
      function(pair) return string.char(tonumber(pair, 16)) end)
  local last, ids = tonumber(string.sub(hex, 29), 16), {}
  for n = 0, count - 1 do
    local mixed = bit.bxor(last, n)
    ids[n + 1] = head .. string.char(bit.rshift(mixed, 8), bit.band(mixed, 255))
  end
  return ids
end
local function put(key, how, score, ids)
  for i = 1, #ids, 500 do
    local members = {}
    for n = i, math.min(i + 499, #ids) do
      members[#members + 1] = score
      members[#members + 1] = ids[n]
    end
    redis.call('ZADD', key, how, unpack(members))
  end
end
