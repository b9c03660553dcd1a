-- Writes several names, all or none: only if each row is still as it was read, which is looked at
-- once all of them are locked. In one order, so that two of these do not wait for each other.
WITH wanted AS (
  SELECT * FROM unnest(
    $1::smallint[], $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bytea[],
    $7::bigint[], $8::bigint[], $9::boolean[], $10::text[])
  AS w(kind, name, seen, version, number, claim, ends, since, line, record)
), locked AS (
  SELECT l.kind, l.name FROM {locks} AS l
  JOIN wanted AS w ON l.kind = w.kind AND l.name = w.name AND l.version = w.seen
  ORDER BY l.kind, l.name FOR UPDATE OF l
), ready AS (
  SELECT count(*) = $11::bigint AND {now} <= $12::bigint AS all_there FROM locked
), written AS (
  UPDATE {locks} AS l SET
    version = w.version, number = w.number, claim = w.claim, ends = w.ends, since = w.since,
    line = w.line, record = w.record
  FROM wanted AS w, ready
  WHERE ready.all_there AND l.kind = w.kind AND l.name = w.name AND l.version = w.seen
  RETURNING l.version
)
SELECT (SELECT count(*) FROM written), {now}
