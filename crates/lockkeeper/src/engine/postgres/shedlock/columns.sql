-- The columns of a table, whether each has to be given, and whether the name alone is unique.
SELECT n.nspname::text, a.attname::text, format_type(a.atttypid, a.atttypmod),
  a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND a.attgenerated = '',
  EXISTS (
    SELECT FROM pg_index AS i
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL
      AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.oid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
