-- Takes what is free, or is this claim's own already. The second part reads the row as it was
-- before: whoever had it, and for how long still.
WITH taken AS (
  UPDATE {table} SET lock_until = {now} + $2::bigint * interval '1 microsecond',
    locked_at = CASE WHEN locked_by = $3::text AND lock_until > {now} THEN locked_at ELSE {now} END,
    locked_by = $3
  WHERE name = $1::text AND (lock_until <= {now} OR locked_by = $3) AND {us} <= $4::bigint
  RETURNING name
)
SELECT EXISTS (SELECT FROM taken), {us}, s.locked_by::text, {since}, {left}
FROM (VALUES (1)) AS one LEFT JOIN {table} AS s ON s.name = $1
