-- What the server is, and what its settings promise.
SELECT {now}, current_setting('server_version'), pg_is_in_recovery(),
  current_setting('transaction_read_only') = 'on',
  current_setting('fsync'), current_setting('full_page_writes'),
  current_database()::text, current_user::text,
  -- A plain role sees that somebody follows, and not what it is.
  (SELECT count(*) FROM pg_stat_replication),
  btrim(current_setting('synchronous_standby_names')) <> ''
