-- Forgets a name that nobody uses.
DELETE FROM {locks} WHERE kind = $1 AND name = $2 AND record = '' AND NOT line
