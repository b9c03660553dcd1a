-- A name's row, the head of its line, and one claim's place in it. Who stands there is counted up
-- to $5: what is done once for each hand-off costs as much in a long line as in a short one.
SELECT {now}, l.version, l.number, l.claim, l.ends, l.since, l.line, l.record,
  CASE WHEN l.line THEN ARRAY(
    SELECT concat_ws(' ', seq, alive, asked, encode(claim, 'hex'), record)
    FROM {line} WHERE kind = $1::smallint AND name = $2 ORDER BY seq LIMIT $4::bigint) END,
  CASE WHEN l.line THEN (SELECT count(*) FROM (
    SELECT FROM {line} WHERE kind = $1::smallint AND name = $2 LIMIT $5::bigint) AS places) END,
  -- Also where nobody stands there: places may have been left when a row was deleted.
  (SELECT seq FROM {line} WHERE kind = $1::smallint AND name = $2 ORDER BY seq DESC LIMIT 1),
  CASE WHEN l.line THEN (
    SELECT concat_ws(' ', seq, alive, asked, encode(claim, 'hex'), record)
    FROM {line} WHERE kind = $1::smallint AND name = $2 AND claim = $3::bytea) END,
  CASE WHEN l.line THEN (
    SELECT count(*) FROM {line} WHERE kind = $1::smallint AND name = $2 AND seq < (
      SELECT seq FROM {line} WHERE kind = $1::smallint AND name = $2 AND claim = $3::bytea)) END
FROM (SELECT) AS one LEFT JOIN {locks} AS l ON l.kind = $1::smallint AND l.name = $2
