-- Which process of the server's we are, and for how long it keeps locks: a crash of any of its
-- processes frees all of them and begins the statistics anew, like a start.
SELECT a.pid, (extract(epoch FROM a.backend_start) * 1000000)::bigint, pg_is_in_recovery(),
  current_setting('server_version'),
  current_database(), current_user, current_setting('tcp_user_timeout', true),
  (extract(epoch FROM clock_timestamp() - greatest(pg_postmaster_start_time(), least(
    (SELECT stats_reset FROM pg_stat_bgwriter),
    (SELECT stats_reset FROM pg_stat_archiver)))) * 1000)::bigint,
  current_setting('max_locks_per_transaction')::bigint
    * (current_setting('max_connections')::bigint
      + current_setting('max_prepared_transactions')::bigint),
  (SELECT count(*) FROM pg_stat_replication)
FROM pg_stat_activity AS a WHERE a.pid = pg_backend_pid()
