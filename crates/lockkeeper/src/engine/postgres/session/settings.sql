-- What would end a statement that waits, or a connection that is silent, does not count on ours. A
-- server whose version lacks one of these has no such end.
SET search_path = pg_catalog;
SELECT set_config(s.name, v.value, false) FROM (VALUES
  ('statement_timeout', '0'),
  ('lock_timeout', '0'),
  ('idle_session_timeout', '0'),
  ('idle_in_transaction_session_timeout', '0'),
  ('transaction_timeout', '0'),
  ('tcp_keepalives_idle', '{idle}'),
  ('tcp_keepalives_interval', '{interval}'),
  ('tcp_keepalives_count', '{count}'),
  ('tcp_user_timeout', '{user}')
) AS v (name, value) JOIN pg_settings AS s ON s.name = v.name
