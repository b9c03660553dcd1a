-- The beginning of a release. KEYS: record, line, last, watch.
-- ARGV: how its record begins; what `last` says while nobody is in the way and no number was given
-- since (empty: the short way is not to be taken); until when to refuse a request of the claim that
-- is still on its way (0 or nothing: there is none); then nothing, or a place that stands in line
-- in the same message: place, not_after_us, how.
-- Nobody is in the way: three calls and done. Several holders are a hash, which is no text.
if ARGV[2] ~= '' and redis.pcall('GET', KEYS[3]) == ARGV[2] then
  local value = redis.pcall('GET', KEYS[1])
  if type(value) == 'string' and string.sub(value, 1, #ARGV[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
    return 1
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function text(number) return string.format('%.0f', number) end
local got = redis.call('MGET', KEYS[1], KEYS[3], KEYS[4])
