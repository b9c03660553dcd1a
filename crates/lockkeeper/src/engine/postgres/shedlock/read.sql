-- One name, or every held name that starts with a text.
SELECT s.name::text, s.locked_by::text, {since}, {left} FROM {table} AS s
WHERE CASE WHEN $1::boolean THEN s.name = $2::text
  ELSE starts_with(s.name, $2::text) AND s.lock_until > {now} END
ORDER BY s.name LIMIT 100000
