-- W is the greatest token of an exclusive holder, A the greatest of any. Both are 19 digits, so
-- that text compares as the numbers do: a number in Lua is a double, and would round them.
local function fence_seen(fence)
  local text = redis.call('GET', fence)
  if not text then return string.rep('0', 19), string.rep('0', 19) end
  local w, a = string.match(text, '^(%d+) (%d+)$')
  if not w or #w ~= 19 or #a ~= 19 then
    error('LOCKKEEPER FENCE ' .. fence .. ' holds no tokens', 0)
  end
  return w, a
end
-- Whether an exclusive holder may write or read: token >= A, then W = A = token.
local function fence_exclusive(fence, token)
  local w, a = fence_seen(fence)
  if token < a then return false end
  if token ~= w or token ~= a then redis.call('SET', fence, token .. ' ' .. token) end
  return true
end
-- Whether a shared holder may read: token >= W, then A = max(A, token).
local function fence_shared(fence, token)
  local w, a = fence_seen(fence)
  if token < w then return false end
  if token > a then redis.call('SET', fence, w .. ' ' .. token) end
  return true
end
