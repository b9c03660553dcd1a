-- A sign of life of a place. It answers every question that was put before, whatever the clock said
-- then: one that was set back since would keep the question younger than the sign. Its commit waits
-- for no disk and no standby: others are to see it in time, and one that a crash takes away is
-- asked for again.
UPDATE {line} SET alive = {now} + 15000000, asked = 0 WHERE kind = $1 AND name = $2 AND claim = $3
RETURNING set_config('synchronous_commit', 'off', true)
