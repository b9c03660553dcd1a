-- Who stands on a row: whether all of it could be locked, and whether all but its number could. A
-- row of which only the number is kept is under a holder's transaction, by held.sql: all but that
-- is locked first, so that nobody else can come and go in between and look like one. Waits for
-- nobody.
WITH part AS (
  SELECT FROM {locks} WHERE kind = $1 AND name = $2 FOR NO KEY UPDATE SKIP LOCKED
), whole AS (
  SELECT FROM {locks} WHERE kind = $1 AND name = $2 AND EXISTS (SELECT FROM part)
  FOR UPDATE SKIP LOCKED
)
SELECT (SELECT count(*) FROM whole) > 0, (SELECT count(*) FROM part) > 0
