-- One row a name, and one a place in its line. Times are microseconds of the server's clock.
CREATE TABLE IF NOT EXISTS {layout} (
  number integer NOT NULL PRIMARY KEY
);
CREATE TABLE IF NOT EXISTS {locks} (
  kind smallint NOT NULL,     -- 0 lock, 1 semaphore, 2 election, 3 latch
  name bytea NOT NULL,
  version bigint NOT NULL,    -- the time of the first write, then one more at every write
  number bigint NOT NULL,     -- the last number; every passing of the hold changes it
  claim bytea,                -- the holder's id, if there is one holder
  since bigint NOT NULL,      -- when that one was granted it
  ends bigint NOT NULL,       -- from then on nobody holds it
  line boolean NOT NULL,      -- whether there are places in line to be read
  record text NOT NULL,       -- the holders, and what else there is to say
  PRIMARY KEY (kind, name)
) WITH (fillfactor = 50);
CREATE TABLE IF NOT EXISTS {line} (
  kind smallint NOT NULL,
  name bytea NOT NULL,
  seq bigint NOT NULL,        -- the order; 0 for an upgrade
  claim bytea NOT NULL,
  alive bigint NOT NULL,      -- until when it lives without another sign
  asked bigint NOT NULL,      -- when it was asked for one
  record text NOT NULL,
  PRIMARY KEY (kind, name, seq)
) WITH (fillfactor = 50);
-- A foreign key could refer to it: so FOR KEY SHARE keeps `number` from changing, and nothing else.
CREATE UNIQUE INDEX IF NOT EXISTS {numbers} ON {locks} (kind, name, number);
-- Two copies of one request stand there once. The claim comes first: where a line is long and the
-- server has no statistics of it yet, it would read a whole name by this index.
CREATE UNIQUE INDEX IF NOT EXISTS {claims} ON {line} (claim, kind, name);
INSERT INTO {layout} (number) SELECT 1 WHERE NOT EXISTS (SELECT FROM {layout});
