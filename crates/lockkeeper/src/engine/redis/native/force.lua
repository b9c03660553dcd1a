-- Takes a lock away from whoever holds it, and tells them.
load(KEYS, 1, got)
local taken = {}
if one then
  taken[1] = one
elseif many then
  local all = call('HGETALL', record)
  for i = 1, #all, 2 do
    if all[i] ~= '=' then
      taken[#taken + 1] = holder_of((string.gsub(all[i + 1], '^%d+ ', '', 1)))
    end
  end
end
if #taken > 0 then
  for _, holder in ipairs(taken) do
    if stored < holder.number then stored = holder.number end
  end
  call('DEL', record)
  one, many, dirty, changed = nil, nil, true, true
  for _, holder in ipairs(taken) do tell(holder.channel, 'taken ' .. holder.claim) end
end
settle()
finish()
return {'D', text(now), text(#taken)}
