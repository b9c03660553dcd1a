-- As ShedLock's documentation has it. Times are UTC.
CREATE TABLE IF NOT EXISTS {table} (
  name varchar(64) NOT NULL,
  lock_until timestamp NOT NULL,   -- from then on nobody holds it
  locked_at timestamp NOT NULL,
  locked_by varchar(255) NOT NULL,
  PRIMARY KEY (name)
);
