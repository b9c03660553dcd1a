-- A sign of life of a place.
UPDATE {line} SET alive = {now} + 15000000 WHERE kind = $1 AND name = $2 AND claim = $3
RETURNING 1
