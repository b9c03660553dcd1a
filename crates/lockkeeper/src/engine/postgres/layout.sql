-- The layout's number, its schema, and what stands there under the two other names: the statements
-- use these, whatever the search path finds first. Then whether a unique index has the column
-- `number`: only then does the statement of held.sql keep the number from changing. Last whether a
-- name has one row at most, and a claim one place: in tables that were copied without their keys
-- there could be more. Only an index's keys count, not what it carries along (INCLUDE).
WITH home AS (
  SELECT max(l.number) AS number, min(n.nspname::text) AS schema, min(n.oid) AS oid
  FROM {layout} AS l
  JOIN pg_class AS c ON c.oid = l.tableoid JOIN pg_namespace AS n ON n.oid = c.relnamespace
), tables AS (
  SELECT t.oid, t.relname::text AS name, t.relkind::text AS kind
  FROM pg_class AS t JOIN home ON t.relnamespace = home.oid
  WHERE t.relname IN ($1::name, $2::name)
), keys AS (
  SELECT t.name, array(
    SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = i.indrelid
    AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])) AS columns
  FROM pg_index AS i JOIN tables AS t ON t.oid = i.indrelid
  WHERE i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL
)
SELECT home.number, home.schema,
  (SELECT kind FROM tables WHERE name = $1), (SELECT kind FROM tables WHERE name = $2),
  EXISTS (SELECT FROM keys WHERE name = $1 AND 'number' = ANY (columns)),
  EXISTS (SELECT FROM keys WHERE name = $1
    AND columns @> ARRAY['kind', 'name'] AND cardinality(columns) = 2),
  EXISTS (SELECT FROM keys WHERE name = $2
    AND columns @> ARRAY['kind', 'name', 'claim'] AND cardinality(columns) = 3)
FROM home
