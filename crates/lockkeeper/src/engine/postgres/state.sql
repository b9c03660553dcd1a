-- Something that changes whenever a name does, or when a lease runs out.
SELECT concat_ws(' ', sum(version), count(*), count(*) FILTER (WHERE ends > {now}))
FROM {locks}
WHERE CASE WHEN $1::smallint < 0 THEN substring(name FROM 1 FOR length($2::bytea)) = $2
  ELSE kind = $1 AND name = $2 END
