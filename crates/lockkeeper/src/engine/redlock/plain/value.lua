-- A value begins with its claim, and ends with the round that wrote it, in hex (R3).
local function is_same(held, value, length)
  return held and #held == #value and string.sub(held, 1, length) == string.sub(value, 1, length)
end
local function round(value, length)
  return tonumber(string.match(string.sub(value, length + 1), '^%x+') or '0', 16)
end
