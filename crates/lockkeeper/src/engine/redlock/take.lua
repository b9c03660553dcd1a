-- Writes our record unless another's is there, or somebody reads, or others wait before us; asked
-- for twice it is there once (R3). It lasts a whole lease from now on, and has our number if that
-- is the greatest, else the next one.
-- KEYS: record last member readers line signs turn.
-- ARGV: claim round ttl_ms not_after_us who number first waits run max_ttl_ms; a hold has 0 as its
-- first, and waits for nothing and nobody
local held = read(KEYS[1])
local holds = ARGV[7] == HELD
-- Refused. Whoever waits has a place in line, and is told how many are before it.
local function refused(answer)
  if ARGV[8] == '1' then
    local rank = stand(KEYS[5], KEYS[6], claim, ARGV[7], now)
    if not rank then error('LOCKKEEPER FULL ' .. KEYS[1], 0) end
    answer[7] = exact(rank)
  elseif holds then
    waits_no_more(KEYS[5], KEYS[6], KEYS[7], claim, now)
  end
  return answer
end
if held then
  if held.claim ~= claim then
    return refused({'B', stamp, exact(last), exact(rest(KEYS[1], held)), held.text, ''})
  end
  -- A late request of an earlier round takes nothing back: see give.
  if held.round >= tonumber(round) then round, number = exact(held.round), held.number end
  since = held.since
else
  local first, longest = first_reader(KEYS[4], now)
  if first then
    return refused({'B', stamp, exact(last), exact(first.rest), first.text, exact(longest)})
  end
  local turn = turn_of(KEYS[7], now)
  if not holds then
    local its_turn = turn and turn.claim == claim
    local stands = its_turn or redis.call('ZSCORE', KEYS[5], claim)
    -- Since when it waits, if it asked before and stands in no line here (rule 3).
    local lost = ARGV[8] == '1' and tonumber(round) > 1 and not stands and ARGV[7]
    local function waits_longer(than, other)
      return lost and precedes(lost, claim, than, other)
    end
    local next_is, waits_since
    if not its_turn and not (turn and turn.left > 0) and not stands then
      next_is, waits_since = first_that_lives(KEYS[5], KEYS[6], now)
    end
    if next_is and not waits_longer(waits_since, next_is)
      and hand_on(KEYS[5], KEYS[6], KEYS[7], ARGV[11], '-', now) then
      turn = turn_of(KEYS[7], now)
    end
    if turn and not its_turn and turn.left > 0 and not waits_longer(turn.first, turn.claim) then
      return refused({'R', stamp, exact(last), exact(turn.left), turn.claim, turn.first})
    end
    came(KEYS[5], KEYS[6], KEYS[7], claim, lost, turn, now)
  else
    waits_no_more(KEYS[5], KEYS[6], KEYS[7], claim, now)
  end
end
return take()
