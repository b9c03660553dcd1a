-- Writes the first row of a name, if there is none yet. Its version is the server's clock: a row
-- that was deleted never comes back with a version that somebody saw.
WITH written AS (
  INSERT INTO {locks} (kind, name, version, number, claim, ends, since, line, record)
  SELECT $1::smallint, $2::bytea, {now}, $3::bigint, $4::bytea, $5::bigint, $6::bigint,
    $7::boolean, $8::text
  WHERE {now} <= $9::bigint
  ON CONFLICT DO NOTHING
  RETURNING version
), come AS (
  INSERT INTO {line} (kind, name, seq, claim, alive, asked, record)
  SELECT $1, $2, $10::bigint, $11::bytea, $12::bigint, 0, $13::text FROM written
  WHERE $10::bigint >= 0
  ON CONFLICT (kind, name, claim) DO NOTHING
)
SELECT (SELECT count(*) FROM written), {now}, (SELECT max(version) FROM written)
