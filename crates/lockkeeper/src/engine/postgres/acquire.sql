-- Takes what nobody holds and nobody waits for: the optimistic write itself. The clock is read
-- again if others changed the row while this waited for it, but not if they only locked it. No row,
-- and nothing is written, if it is not free. Where a lease ran out the record is still there: a
-- transaction of its holder may keep the lock, and is asked about first.
UPDATE {locks} SET
  version = version + 1,
  number = greatest(number + 1, ({now} - 1767225600000000) / 16),
  claim = $3, since = {now}, ends = {now} + $4::bigint, record = $6
WHERE kind = $1 AND name = $2 AND NOT line AND record = '' AND ends <= {now} AND {now} <= $5::bigint
RETURNING version, number, {now}
