-- The layout's number, the schema, and whether a unique index has the column `number`: only then
-- does the statement of held.sql keep the number from changing.
SELECT max(l.number), min(n.nspname::text), EXISTS (
  SELECT FROM pg_index AS i JOIN pg_attribute AS a
    ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) AND a.attname = 'number'
  WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL)
FROM {layout} AS l
JOIN pg_class AS c ON c.oid = l.tableoid JOIN pg_namespace AS n ON n.oid = c.relnamespace
