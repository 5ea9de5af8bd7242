-- Dead letters. The tables have a version of their own, so that they can share a schema with leases.
-- Whoever writes holds the row of leasehold_dead_letters_schema: letters become visible in the order
-- of their numbers, so that nobody pages past one that is still on its way, and no two writers wait
-- for each other. Texts cannot hold a NUL here: partition_key is kept as JSON.

-- name: has_version
SELECT 1 FROM pg_tables
WHERE schemaname = %(schema)s AND tablename = 'leasehold_dead_letters_schema'

-- name: version
SELECT version FROM {schema}.leasehold_dead_letters_schema

-- name: set_version
INSERT INTO {schema}.leasehold_dead_letters_schema (version) VALUES (%(version)s)

-- name: tables
CREATE TABLE {schema}.leasehold_dead_letters_schema (
    only_row integer PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    version integer NOT NULL,
    last_number bigint NOT NULL DEFAULT 0
);

CREATE TABLE {schema}.leasehold_dead_letters (
    number bigint PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    namespace text NOT NULL,
    feed text NOT NULL,
    group_name text NOT NULL,
    partition text NOT NULL,
    sequence bigint NOT NULL,
    token text NOT NULL,
    attempts integer NOT NULL,
    enqueued_us bigint NOT NULL,
    dead_us bigint NOT NULL,
    redriven_us bigint,
    redrives integer NOT NULL DEFAULT 0,
    partition_key text,
    error text NOT NULL,
    properties text NOT NULL,
    body bytea NOT NULL
)

-- name: which
-- Stands for {which} in the queries below. What is not given is NULL.
(%(namespace)s::text IS NULL OR namespace = %(namespace)s::text)
    AND (%(feed)s::text IS NULL OR feed = %(feed)s::text)
    AND (%(group_name)s::text IS NULL OR group_name = %(group_name)s::text)
    AND (%(partition)s::text IS NULL OR partition = %(partition)s::text)
    AND (%(ids)s::text[] IS NULL OR id = ANY(%(ids)s::text[]))
    AND (%(redriven)s::boolean IS NULL OR (redriven_us IS NOT NULL) = %(redriven)s::boolean)
    AND (
        %(older_than_us)s::bigint IS NULL
        OR dead_us
            < (extract(epoch FROM statement_timestamp()) * 1000000)::bigint - %(older_than_us)s::bigint
    )
    AND (%(up_to)s::bigint IS NULL OR number <= %(up_to)s::bigint)

-- name: put
WITH numbered AS (
    UPDATE {schema}.leasehold_dead_letters_schema
    SET last_number = last_number + cardinality(%(id)s::text[])
    WHERE only_row = 1
    RETURNING last_number - cardinality(%(id)s::text[]) AS before
)
INSERT INTO {schema}.leasehold_dead_letters (
    number, dead_us, id, namespace, feed, group_name, partition, sequence, token, attempts,
    enqueued_us, partition_key, error, properties, body
)
SELECT
    numbered.before + given.place, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    given.id, given.namespace, given.feed, given.group_name, given.partition, given.sequence,
    given.token, given.attempts, given.enqueued_us, given.partition_key, given.error,
    given.properties, given.body
FROM numbered
CROSS JOIN unnest(
    %(id)s::text[], %(namespace)s::text[], %(feed)s::text[], %(group_name)s::text[],
    %(partition)s::text[], %(sequence)s::bigint[], %(token)s::text[], %(attempts)s::integer[],
    %(enqueued_us)s::bigint[], %(partition_key)s::text[], %(error)s::text[],
    %(properties)s::text[], %(body)b::bytea[]
) WITH ORDINALITY AS given (
    id, namespace, feed, group_name, partition, sequence, token, attempts, enqueued_us,
    partition_key, error, properties, body, place
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
FROM {schema}.leasehold_dead_letters
WHERE (%(after)s::bigint IS NULL OR number > %(after)s::bigint) AND {which}
ORDER BY number
LIMIT %(limit)s::bigint

-- name: list_newest
SELECT
    namespace, feed, group_name, partition, sequence, token, body, properties, partition_key,
    enqueued_us, error, attempts, number, dead_us, redriven_us, redrives
FROM {schema}.leasehold_dead_letters
WHERE (%(after)s::bigint IS NULL OR number < %(after)s::bigint) AND {which}
ORDER BY number DESC
LIMIT %(limit)s::bigint

-- name: get
SELECT
    namespace, feed, group_name, partition, sequence, token, body, properties, partition_key,
    enqueued_us, error, attempts, number, dead_us, redriven_us, redrives
FROM {schema}.leasehold_dead_letters
WHERE id = %(id)s::text

-- name: count
SELECT namespace, feed, group_name, count(*)
FROM {schema}.leasehold_dead_letters
WHERE {which}
GROUP BY namespace, feed, group_name

-- name: mark_redriven
WITH held AS MATERIALIZED (
    SELECT only_row FROM {schema}.leasehold_dead_letters_schema WHERE only_row = 1 FOR UPDATE
)
UPDATE {schema}.leasehold_dead_letters SET
    redriven_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    redrives = redrives + 1
WHERE id = ANY(%(ids)s::text[]) AND (SELECT count(*) FROM held) = 1
RETURNING 1

-- name: purge
-- Some at a time, so that those who put letters meanwhile need not wait for long. What was chosen
-- may have been put again before its turn came: it must still be what was asked for.
WITH held AS MATERIALIZED (
    SELECT only_row FROM {schema}.leasehold_dead_letters_schema WHERE only_row = 1 FOR UPDATE
),
chosen AS MATERIALIZED (
    SELECT number FROM {schema}.leasehold_dead_letters
    WHERE number > %(after)s::bigint AND {which}
    ORDER BY number
    LIMIT %(limit)s::bigint
),
gone AS (
    DELETE FROM {schema}.leasehold_dead_letters
    WHERE number IN (SELECT number FROM chosen)
        AND (SELECT count(*) FROM held) = 1
        AND {which}
    RETURNING number
)
SELECT (SELECT max(number) FROM chosen), (SELECT count(*) FROM gone)
