-- Forgets a name that nobody uses.
DELETE FROM {table} WHERE name = $1::text AND lock_until <= {now}
