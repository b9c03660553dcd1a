-- Removes every name that holds a word, whoever uses it.
DELETE FROM {table} WHERE position($1::text IN name) > 0
