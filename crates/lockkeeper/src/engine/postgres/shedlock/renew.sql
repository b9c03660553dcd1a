-- Extends what is still the holder's own, and waits for nobody: it tells on whose rows somebody
-- else stands.
WITH asked AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]) AS a(name, locked_by, ttl)
), free AS (
  SELECT s.name FROM {table} AS s JOIN asked AS a ON s.name = a.name AND s.locked_by = a.locked_by
  FOR NO KEY UPDATE OF s SKIP LOCKED
), renewed AS (
  UPDATE {table} AS s SET lock_until = {now} + a.ttl * interval '1 microsecond'
  FROM asked AS a JOIN free AS f ON f.name = a.name
  WHERE s.name = a.name AND s.locked_by = a.locked_by AND s.lock_until > {now}
  RETURNING s.locked_by
)
SELECT a.locked_by, EXISTS (SELECT FROM renewed AS r WHERE r.locked_by = a.locked_by),
  f.name IS NULL AND EXISTS (
    SELECT FROM {table} AS s
    WHERE s.name = a.name AND s.locked_by = a.locked_by AND s.lock_until > {now}), {us}
FROM asked AS a LEFT JOIN free AS f ON f.name = a.name
