-- Makes empty rows for names that have none, with versions as insert.sql gives them.
INSERT INTO {locks} (kind, name, version, number, since, ends, line, record)
SELECT kind, name, {now}, 0, 0, 0, false, ''
FROM unnest($1::smallint[], $2::bytea[]) AS w(kind, name)
ORDER BY kind, name
ON CONFLICT DO NOTHING
