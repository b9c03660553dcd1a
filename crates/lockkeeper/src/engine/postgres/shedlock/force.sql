-- Takes a lock away from one hold, and from nobody who came since.
UPDATE {table} AS s SET lock_until = date_trunc('milliseconds', {now})
WHERE name = $1::text AND locked_by = $2::text AND {since} = $3::bigint AND lock_until > {now}
RETURNING name
