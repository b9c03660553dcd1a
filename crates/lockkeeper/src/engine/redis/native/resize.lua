-- Stores a semaphore's limit. ARGV: the limit.
load(KEYS, 1, got)
local differs = stored ~= tonumber(ARGV[1])
stored, limited, dirty, changed = tonumber(ARGV[1]), true, true, changed or differs
settle()
finish()
return {'D', text(now), differs and '1' or '0'}
