-- The first lock of a name.
INSERT INTO {table} (name, lock_until, locked_at, locked_by)
SELECT $1::text, {now} + $2::bigint * interval '1 microsecond', {now}, $3::text
WHERE {us} <= $4::bigint
ON CONFLICT (name) DO NOTHING RETURNING {us}
