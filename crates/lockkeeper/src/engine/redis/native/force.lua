-- Takes a lock away from those who hold it by these claims, and tells them; without any, from
-- whoever holds it. ARGV: the claims.
load(KEYS, 1, got)
local meant, taken, holders = {}, {}, 0
for _, claim in ipairs(ARGV) do meant[claim] = true end
local function held_by(holder)
  holders = holders + 1
  if not ARGV[1] or meant[holder.claim] then taken[#taken + 1] = holder end
end
if one then
  held_by(one)
elseif many then
  local all = call('HGETALL', record)
  for i = 1, #all, 2 do
    if all[i] ~= '=' then held_by(holder_of((string.gsub(all[i + 1], '^%d+ ', '', 1)))) end
  end
end
if #taken > 0 and #taken < holders then
  for _, holder in ipairs(taken) do
    remove(holder.claim)
    tell(holder.channel, 'taken ' .. holder.claim)
  end
elseif #taken > 0 then
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
