-- The server's clock, and who locked last.
SELECT {us}, s.locked_by::text, {since}
FROM {table} AS s WHERE s.locked_by NOT LIKE '% lockkeeper %' ORDER BY s.locked_at DESC LIMIT 100
