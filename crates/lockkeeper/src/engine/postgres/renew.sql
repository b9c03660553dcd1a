-- Renews the leases of those who hold alone, and waits for nobody: it tells on whose rows somebody
-- else stands. The row's number is the holder's own where its text says none.
WITH asked AS (
  SELECT * FROM unnest($1::smallint[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[])
    AS a(kind, name, claim, ttl, delay)
), free AS (
  SELECT l.kind, l.name FROM {locks} AS l
  JOIN (SELECT DISTINCT kind, name FROM asked) AS n ON l.kind = n.kind AND l.name = n.name
  FOR NO KEY UPDATE OF l SKIP LOCKED
), renewed AS (
  UPDATE {locks} AS l SET version = l.version + 1, ends = {now} + a.ttl + a.delay
  FROM asked AS a JOIN free AS f ON f.kind = a.kind AND f.name = a.name
  WHERE l.kind = a.kind AND l.name = a.name AND l.claim = a.claim AND l.ends - a.delay > {now}
  RETURNING l.claim, CASE WHEN split_part(l.record, ' ', 5) ~ '^[0-9]{1,18}$'
    THEN split_part(l.record, ' ', 5)::bigint ELSE l.number END AS number
)
SELECT a.claim, r.number, f.name IS NULL, {now}
FROM asked AS a
LEFT JOIN renewed AS r ON r.claim = a.claim
LEFT JOIN free AS f ON f.kind = a.kind AND f.name = a.name
