-- Puts a place at the end of the line of a lock that somebody holds, whatever else was written
-- since it was read: beside one who takes and frees it all the time nobody would come to write what
-- was decided on a version. Its order is the row's version, which is above that of every place:
-- each that comes is a write of the row.
WITH written AS (
  UPDATE {locks} SET version = version + 1, line = true
  WHERE kind = $1 AND name = $2 AND (claim IS NOT NULL OR record <> '') AND ends > {now}
    AND claim IS DISTINCT FROM $3::bytea AND position(encode($3::bytea, 'hex') IN record) = 0
    AND {now} <= $4::bigint
  RETURNING version
)
INSERT INTO {line} (kind, name, seq, claim, alive, asked, record)
SELECT $1, $2, version, $3, {now} + 15000000, 0, $5::text FROM written
ON CONFLICT DO NOTHING
RETURNING 1
