-- Removes every name that holds a word, whoever uses it.
WITH gone AS (DELETE FROM {line} WHERE position($1::bytea IN name) > 0)
DELETE FROM {locks} WHERE position($1::bytea IN name) > 0
