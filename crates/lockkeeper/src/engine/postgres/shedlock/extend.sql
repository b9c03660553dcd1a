-- The same for one, which waits for its row.
UPDATE {table} SET lock_until = {now} + $3::bigint * interval '1 microsecond'
WHERE name = $1::text AND locked_by = $2::text AND lock_until > {now} RETURNING {us}
