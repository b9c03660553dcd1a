-- Who holds it: identity, mode, count, what is left of the lease in milliseconds. KEYS: key
-- A huge value is no identity: its beginning is enough.
local held = redis.call('GETRANGE', KEYS[1], 0, 1023)
if held == '' and redis.call('EXISTS', KEYS[1]) == 0 then return {'', {}} end
return {'', {{held, 'x', '1', string.format('%.0f', redis.call('PTTL', KEYS[1]))}}}
