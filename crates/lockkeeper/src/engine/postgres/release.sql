-- Gives back what its only holder has, if nobody waits.
UPDATE {locks} SET
  version = version + 1, number = number + 1, claim = NULL, since = 0, ends = 0, record = ''
WHERE kind = $1 AND name = $2 AND claim = $3 AND NOT line AND ends - $4::bigint > {now}
RETURNING version
