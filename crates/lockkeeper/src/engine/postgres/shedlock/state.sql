-- Something that changes whenever a name does, also one that was taken and given back between two
-- looks, or when a lock's time runs out.
SELECT coalesce(md5(string_agg(
  concat_ws(' ', s.name, s.locked_by, {since}, s.lock_until > {now}), e'\n' ORDER BY s.name)), '')
FROM {table} AS s
WHERE CASE WHEN $1::boolean THEN s.name = $2::text ELSE starts_with(s.name, $2::text) END
