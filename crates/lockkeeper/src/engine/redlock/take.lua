-- Writes our record unless another's is there; asked for twice it is there once (R3). It lasts a
-- whole lease from now on. KEYS: record. ARGV: claim round ttl_ms not_after_us who
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stamp = string.format('%.0f', now)
-- A request that was delayed in the network must not lock for a caller who has left (R3).
if now > tonumber(ARGV[4]) then return {'T', stamp} end
local held, round, since = read(KEYS[1]), tonumber(ARGV[2]), stamp
if held then
  if held.claim ~= ARGV[1] then
    return {'B', stamp, string.format('%.0f', redis.call('PTTL', KEYS[1])), held.text}
  end
  -- A late request of an earlier round takes nothing back: see give.
  round, since = math.max(round, held.round), held.since
end
local stamped = string.format('%.0f', round)
local text = table.concat({'1', ARGV[1], stamped, since, ARGV[3], ARGV[5]}, ' ')
redis.call('SET', KEYS[1], text, 'PX', ARGV[3])
return {'Y', stamp}
