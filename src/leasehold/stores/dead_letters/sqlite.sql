-- Dead letters. The tables have a version of their own, so that they can share a file with leases.
-- wall() is the machine's clock in seconds; times are kept in microseconds.

-- name: has_version
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'leasehold_dead_letters_schema'

-- name: version
SELECT version FROM leasehold_dead_letters_schema

-- name: set_version
INSERT INTO leasehold_dead_letters_schema (version) VALUES (:version)

-- name: tables
CREATE TABLE leasehold_dead_letters_schema (
    only_row INTEGER PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    version INTEGER NOT NULL
) STRICT;

CREATE TABLE leasehold_dead_letters (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    feed TEXT NOT NULL,
    group_name TEXT NOT NULL,
    partition TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    token TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    enqueued_us INTEGER NOT NULL,
    dead_us INTEGER NOT NULL,
    redriven_us INTEGER,
    redrives INTEGER NOT NULL DEFAULT 0,
    partition_key TEXT,
    error TEXT NOT NULL,
    properties TEXT NOT NULL,
    body BLOB NOT NULL
) STRICT

-- name: which
-- Stands for {which} in the queries below. What is not given is NULL.
(:namespace IS NULL OR namespace = :namespace)
    AND (:feed IS NULL OR feed = :feed)
    AND (:group_name IS NULL OR group_name = :group_name)
    AND (:partition IS NULL OR partition = :partition)
    AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
    AND (:redriven IS NULL OR (redriven_us IS NOT NULL) = :redriven)
    AND (
        :older_than_us IS NULL
        OR dead_us < CAST((SELECT wall()) * 1000000 AS INTEGER) - :older_than_us
    )
    AND (:up_to IS NULL OR number <= :up_to)

-- name: put
INSERT INTO leasehold_dead_letters (
    id, namespace, feed, group_name, partition, sequence, token, attempts, enqueued_us, dead_us,
    partition_key, error, properties, body
) VALUES (
    :id, :namespace, :feed, :group_name, :partition, :sequence, :token, :attempts, :enqueued_us,
    CAST(wall() * 1000000 AS INTEGER), :partition_key, :error, :properties, :body
)
ON CONFLICT (id) DO UPDATE SET
    attempts = excluded.attempts,
    enqueued_us = excluded.enqueued_us,
    dead_us = excluded.dead_us,
    redriven_us = NULL,
    partition_key = excluded.partition_key,
    error = excluded.error,
    properties = excluded.properties,
    body = excluded.body

-- name: list_oldest
SELECT
    namespace, feed, group_name, partition, sequence, token, body, properties, partition_key,
    enqueued_us, error, attempts, number, dead_us, redriven_us, redrives
FROM leasehold_dead_letters
WHERE (:after IS NULL OR number > :after) AND {which}
ORDER BY number
LIMIT :limit

-- name: list_newest
SELECT
    namespace, feed, group_name, partition, sequence, token, body, properties, partition_key,
    enqueued_us, error, attempts, number, dead_us, redriven_us, redrives
FROM leasehold_dead_letters
WHERE (:after IS NULL OR number < :after) AND {which}
ORDER BY number DESC
LIMIT :limit

-- name: get
SELECT
    namespace, feed, group_name, partition, sequence, token, body, properties, partition_key,
    enqueued_us, error, attempts, number, dead_us, redriven_us, redrives
FROM leasehold_dead_letters
WHERE id = :id

-- name: count
SELECT namespace, feed, group_name, count(*)
FROM leasehold_dead_letters
WHERE {which}
GROUP BY namespace, feed, group_name

-- name: mark_redriven
UPDATE leasehold_dead_letters SET
    redriven_us = CAST((SELECT wall()) * 1000000 AS INTEGER),
    redrives = redrives + 1
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING 1

-- name: purge
-- Some at a time, so that those who put letters meanwhile need not wait for long.
DELETE FROM leasehold_dead_letters
WHERE number IN (
    SELECT number FROM leasehold_dead_letters
    WHERE number > :after AND {which}
    ORDER BY number
    LIMIT :limit
)
RETURNING number
