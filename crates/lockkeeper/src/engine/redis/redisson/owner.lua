-- Who has a hash: the first owner that it names.
local function owner_of(hash)
  for _, field in ipairs(redis.call('HKEYS', hash)) do
    if field ~= 'mode' then return field end
  end
  return ''
end
