-- Who holds it: identity, mode, count, what is left of the lease in milliseconds. KEYS: key
local held = redis.call('GET', KEYS[1])
if not held then return {'', {}} end
return {'', {{held, 'x', '1', string.format('%.0f', redis.call('PTTL', KEYS[1]))}}}
