-- Who waits and dies leaves the line, also while nobody gets the lock.
SELECT set_config(name, '500', false) FROM pg_settings
WHERE name = 'client_connection_check_interval'
