-- Gives back what is still the holder's own. Whole milliseconds: a JVM's clock has no more, and
-- takes it at once.
UPDATE {table} SET lock_until = date_trunc('milliseconds', {now})
WHERE name = $1::text AND locked_by = $2::text AND lock_until > {now} RETURNING name
