-- Every name that starts with a text and is not idle, with the head of its line.
SELECT {now}, l.version, l.number, l.claim, l.ends, l.since, l.line, l.record,
  CASE WHEN l.line THEN ARRAY(
    SELECT concat_ws(' ', seq, alive, asked, encode(claim, 'hex'), record)
    FROM {line} AS p WHERE p.kind = l.kind AND p.name = l.name ORDER BY seq LIMIT 1000) END,
  l.kind, l.name
FROM {locks} AS l
WHERE substring(l.name FROM 1 FOR length($1::bytea)) = $1 AND (l.record <> '' OR l.line)
ORDER BY l.kind, l.name LIMIT 100000
