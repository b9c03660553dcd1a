-- Writes what was decided, all or nothing, if the row is still as it was read; then tells those
-- whom it concerns. A commit that notifies waits for every other one that does, on the whole
-- server: without words there is none. The bounds of each list keep the server from reading all of
-- a long line for it.
WITH written AS (
  UPDATE {locks} SET
    version = $4, number = $5, claim = $6, ends = $7, since = $8, line = $9, record = $10
  WHERE kind = $1 AND name = $2 AND version = $3 AND {now} <= $11
  RETURNING version
), gone AS (
  DELETE FROM {line} AS p USING written
  WHERE p.kind = $1 AND p.name = $2 AND p.seq = ANY ($12::bigint[])
    AND p.seq >= (SELECT min(seq) FROM unnest($12::bigint[]) AS seq)
    AND p.seq <= (SELECT max(seq) FROM unnest($12::bigint[]) AS seq)
), asked AS (
  UPDATE {line} AS p SET asked = $13::bigint FROM written
  WHERE p.kind = $1 AND p.name = $2 AND p.seq = ANY ($14::bigint[])
    AND p.seq >= (SELECT min(seq) FROM unnest($14::bigint[]) AS seq)
    AND p.seq <= (SELECT max(seq) FROM unnest($14::bigint[]) AS seq)
), come AS (
  INSERT INTO {line} (kind, name, seq, claim, alive, asked, record)
  SELECT $1, $2, $15::bigint, $16::bytea, $17::bigint, 0, $18::text FROM written
  WHERE $15::bigint >= 0
  ON CONFLICT (kind, name, claim) DO NOTHING
)
SELECT (SELECT count(*) FROM written), {now}, (
  SELECT count(pg_notify(channel, word))
  FROM unnest($19::text[], $20::text[]) AS words(channel, word), written)
