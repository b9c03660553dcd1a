-- Who has advisory locks of this database, and who waits: those first that came first. Before
-- version 14 the time of the wait is not told.
SELECT l.classid, l.objid, l.objsubid, l.mode, l.granted, l.pid,
  coalesce(nullif(a.application_name, ''), a.usename, '') AS program,
  host(a.client_addr) AS address,
  (extract(epoch FROM (to_jsonb(l) ->> 'waitstart')::timestamptz) * 1000000)::bigint AS since
FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.locktype = 'advisory'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) {of}
ORDER BY l.granted DESC, since NULLS LAST, l.pid
