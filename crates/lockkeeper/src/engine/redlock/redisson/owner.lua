-- An RLock is a hash: its one field is the owner, `UUID:number`. A field `mode` belongs to an
-- RReadWriteLock, whose holders keep us out as well.
local function owner_of(key)
  local fields = redis.call('HKEYS', key)
  for _, field in ipairs(fields) do
    if field ~= 'mode' then return field end
  end
  return fields[1]
end
