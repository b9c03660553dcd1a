-- The layout's number, the schema, and whether a unique index has the column `number`: only then
-- does the statement of held.sql keep the number from changing. Last whether a name has one row at
-- most: in a table that was copied without its keys two would hold it.
WITH keys AS (
  SELECT i.indnkeyatts AS columns, array(
    SELECT a.attname::text FROM pg_attribute AS a
    WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)) AS names
  FROM pg_index AS i
  WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL)
SELECT max(l.number), min(n.nspname::text),
  EXISTS (SELECT FROM keys WHERE 'number' = ANY (names)),
  EXISTS (SELECT FROM keys WHERE columns = 2 AND names @> ARRAY['kind', 'name'])
FROM {layout} AS l
JOIN pg_class AS c ON c.oid = l.tableoid JOIN pg_namespace AS n ON n.oid = c.relnamespace
