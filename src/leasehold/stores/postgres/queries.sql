-- Each verb is one statement, whatever the number of leases: they come as one array per column.
-- Statements that change several leases first lock them in the order of their key, so that no two
-- of them wait for each other; what was read before a lock was granted is read again by PostgreSQL
-- (read committed), and the conditions are checked against that. What another transaction keeps
-- locked costs itself only: renew and acquire go past it, all others give up on it soon.

-- name: has_version
SELECT 1 FROM pg_tables WHERE schemaname = %(schema)s AND tablename = 'leasehold_schema'

-- name: version
SELECT version FROM {schema}.leasehold_schema

-- name: set_version
INSERT INTO {schema}.leasehold_schema (version) VALUES (%(version)s)

-- name: tables
CREATE TABLE {schema}.leasehold_schema (
    only_row integer PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    version integer NOT NULL
);

CREATE TABLE {schema}.leasehold_leases (
    namespace text COLLATE "C" NOT NULL,
    feed text COLLATE "C" NOT NULL,
    group_name text COLLATE "C" NOT NULL,
    partition text COLLATE "C" NOT NULL,
    next_sequence bigint NOT NULL,
    token text NOT NULL,
    owner text,
    epoch bigint NOT NULL DEFAULT 0,
    version bigint NOT NULL DEFAULT 1,
    advanced boolean NOT NULL DEFAULT false,
    attempts integer NOT NULL DEFAULT 0,
    offered_to text,
    weight double precision NOT NULL DEFAULT 0,
    ttl_s double precision NOT NULL DEFAULT 0,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (namespace, feed, group_name, partition)
) WITH (fillfactor = 50);

CREATE TABLE {schema}.leasehold_members (
    namespace text COLLATE "C" NOT NULL,
    feed text COLLATE "C" NOT NULL,
    group_name text COLLATE "C" NOT NULL,
    instance text COLLATE "C" NOT NULL,
    incarnation text NOT NULL,
    ttl_s double precision NOT NULL,
    leaving boolean NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (namespace, feed, group_name, instance)
) WITH (fillfactor = 50)

-- name: create
INSERT INTO {schema}.leasehold_leases
    (namespace, feed, group_name, ttl_s, partition, next_sequence, token)
SELECT %(namespace)s, %(feed)s, %(group_name)s, %(ttl_s)s, given.*
FROM unnest(%(partition)s::text[], %(next_sequence)s::bigint[], %(token)s::text[]) AS given (id)
ORDER BY given.id
ON CONFLICT DO NOTHING

-- name: snapshot
-- A list for each column: half the work of a list for each row, where thousands are looked at.
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
SELECT
    (
        SELECT json_build_array(
            json_agg(partition), json_agg(next_sequence), json_agg(token), json_agg(owner),
            json_agg(epoch), json_agg(version), json_agg(advanced), json_agg(attempts),
            json_agg(offered_to), json_agg(weight), json_agg(ttl_s),
            json_agg(extract(epoch FROM clock.now - changed_at))
        )::text
        FROM (
            SELECT * FROM {schema}.leasehold_leases
            WHERE namespace = %(namespace)s AND feed = %(feed)s AND group_name = %(group_name)s
                AND NOT closed
            ORDER BY partition
        ) AS lease
    ),
    (
        SELECT json_build_array(
            json_agg(instance), json_agg(incarnation), json_agg(ttl_s), json_agg(leaving),
            json_agg(seen_at), json_agg(extract(epoch FROM clock.now - seen_at))
        )::text
        FROM (
            SELECT * FROM {schema}.leasehold_members
            WHERE namespace = %(namespace)s AND feed = %(feed)s AND group_name = %(group_name)s
            ORDER BY instance
        ) AS member
    ),
    (
        SELECT coalesce(json_agg(partition), '[]')::text
        FROM {schema}.leasehold_leases
        WHERE namespace = %(namespace)s AND feed = %(feed)s AND group_name = %(group_name)s
            AND closed
    ),
    extract(epoch FROM clock.now)::double precision
FROM clock

-- name: join
INSERT INTO {schema}.leasehold_members AS member
    (namespace, feed, group_name, instance, incarnation, ttl_s, leaving)
VALUES
    (
        %(namespace)s, %(feed)s, %(group_name)s, %(instance)s, %(incarnation)s, %(ttl_s)s,
        %(leaving)s
    )
ON CONFLICT (namespace, feed, group_name, instance) DO UPDATE SET
    incarnation = excluded.incarnation,
    ttl_s = excluded.ttl_s,
    leaving = excluded.leaving,
    seen_at = clock_timestamp()

-- name: forget
DELETE FROM {schema}.leasehold_members
WHERE namespace = %(namespace)s AND feed = %(feed)s AND group_name = %(group_name)s
    AND seen_at + make_interval(secs => ttl_s + %(after_s)s) < clock_timestamp()

-- name: heartbeat
INSERT INTO {schema}.leasehold_members AS member
    (namespace, feed, group_name, instance, incarnation, ttl_s, leaving)
VALUES
    (
        %(namespace)s, %(feed)s, %(group_name)s, %(instance)s, %(incarnation)s, %(ttl_s)s,
        %(leaving)s
    )
ON CONFLICT (namespace, feed, group_name, instance) DO UPDATE SET
    ttl_s = excluded.ttl_s,
    leaving = excluded.leaving,
    seen_at = clock_timestamp()
WHERE member.incarnation = excluded.incarnation
RETURNING 1

-- name: leave
DELETE FROM {schema}.leasehold_members
WHERE namespace = %(namespace)s AND feed = %(feed)s AND group_name = %(group_name)s
    AND instance = %(instance)s AND incarnation = %(incarnation)s

-- name: acquire
WITH given AS (
    SELECT * FROM unnest(
        %(namespace)s::text[], %(feed)s::text[], %(group_name)s::text[], %(partition)s::text[],
        %(version)s::text[]
    ) AS given (namespace, feed, group_name, partition, version)
),
unchanged AS MATERIALIZED (
    SELECT given.*
    FROM {schema}.leasehold_leases AS lease
    JOIN given USING (namespace, feed, group_name, partition)
    WHERE lease.version::text = given.version AND NOT lease.closed
    ORDER BY lease.namespace, lease.feed, lease.group_name, lease.partition
    FOR NO KEY UPDATE OF lease SKIP LOCKED
)
UPDATE {schema}.leasehold_leases AS lease SET
    owner = %(owner)s,
    ttl_s = %(ttl_s)s,
    offered_to = NULL,
    epoch = lease.epoch + 1,
    version = lease.version + 1,
    changed_at = clock_timestamp()
FROM unchanged
WHERE lease.namespace = unchanged.namespace AND lease.feed = unchanged.feed
    AND lease.group_name = unchanged.group_name AND lease.partition = unchanged.partition
RETURNING
    lease.namespace, lease.feed, lease.group_name, lease.partition, lease.next_sequence,
    lease.token, lease.owner, lease.epoch, lease.version, lease.advanced, lease.attempts,
    lease.offered_to, lease.weight, lease.ttl_s, 0.0::double precision

-- name: renew
WITH given AS (
    SELECT * FROM unnest(
        %(namespace)s::text[], %(feed)s::text[], %(group_name)s::text[], %(partition)s::text[],
        %(owner)s::text[], %(epoch)s::bigint[], %(weight)s::double precision[],
        %(ttl_s)s::double precision[]
    ) AS given (namespace, feed, group_name, partition, owner, epoch, weight, ttl_s)
),
held AS MATERIALIZED (
    SELECT given.*
    FROM {schema}.leasehold_leases AS lease
    JOIN given USING (namespace, feed, group_name, partition)
    WHERE lease.owner = given.owner AND lease.epoch = given.epoch
        AND NOT lease.closed
    ORDER BY lease.namespace, lease.feed, lease.group_name, lease.partition
    FOR NO KEY UPDATE OF lease SKIP LOCKED
)
UPDATE {schema}.leasehold_leases AS lease SET
    weight = held.weight,
    ttl_s = held.ttl_s,
    version = lease.version + 1,
    changed_at = clock_timestamp()
FROM held
WHERE lease.namespace = held.namespace AND lease.feed = held.feed
    AND lease.group_name = held.group_name AND lease.partition = held.partition
RETURNING
    lease.namespace, lease.feed, lease.group_name, lease.partition, lease.next_sequence,
    lease.token, lease.owner, lease.epoch, lease.version, lease.advanced, lease.attempts,
    lease.offered_to, lease.weight, lease.ttl_s, 0.0::double precision

-- name: still_held
-- Of leases that were not renewed: those that were only locked. Reads past locks.
SELECT lease.namespace, lease.feed, lease.group_name, lease.partition
FROM {schema}.leasehold_leases AS lease
JOIN unnest(
    %(namespace)s::text[], %(feed)s::text[], %(group_name)s::text[], %(partition)s::text[],
    %(owner)s::text[], %(epoch)s::bigint[]
) AS given (namespace, feed, group_name, partition, owner, epoch)
USING (namespace, feed, group_name, partition)
WHERE lease.owner = given.owner AND lease.epoch = given.epoch AND NOT lease.closed

-- name: release
WITH given AS (
    SELECT * FROM unnest(
        %(namespace)s::text[], %(feed)s::text[], %(group_name)s::text[], %(partition)s::text[],
        %(owner)s::text[], %(epoch)s::bigint[], %(offered_to)s::text[]
    ) AS given (namespace, feed, group_name, partition, owner, epoch, offered_to)
),
held AS MATERIALIZED (
    SELECT given.*
    FROM {schema}.leasehold_leases AS lease
    JOIN given USING (namespace, feed, group_name, partition)
    WHERE lease.owner = given.owner AND lease.epoch = given.epoch
        AND NOT lease.closed
    ORDER BY lease.namespace, lease.feed, lease.group_name, lease.partition
    FOR NO KEY UPDATE OF lease
)
UPDATE {schema}.leasehold_leases AS lease SET
    owner = NULL,
    offered_to = held.offered_to,
    version = lease.version + 1,
    changed_at = clock_timestamp()
FROM held
WHERE lease.namespace = held.namespace AND lease.feed = held.feed
    AND lease.group_name = held.group_name AND lease.partition = held.partition

-- name: checkpoint
-- The version stays: a checkpoint says nothing about who may take the lease.
WITH given AS (
    SELECT * FROM unnest(
        %(namespace)s::text[], %(feed)s::text[], %(group_name)s::text[], %(partition)s::text[],
        %(owner)s::text[], %(epoch)s::bigint[], %(next_sequence)s::bigint[], %(token)s::text[],
        %(attempts)s::integer[]
    ) AS given (
        namespace, feed, group_name, partition, owner, epoch, next_sequence, token, attempts
    )
),
held AS MATERIALIZED (
    SELECT given.*
    FROM {schema}.leasehold_leases AS lease
    JOIN given USING (namespace, feed, group_name, partition)
    WHERE lease.owner = given.owner AND lease.epoch = given.epoch
        AND NOT lease.closed
    ORDER BY lease.namespace, lease.feed, lease.group_name, lease.partition
    FOR NO KEY UPDATE OF lease
)
UPDATE {schema}.leasehold_leases AS lease SET
    next_sequence = greatest(lease.next_sequence, held.next_sequence),
    token = CASE
        WHEN held.next_sequence > lease.next_sequence
            OR (held.next_sequence = lease.next_sequence AND held.token <> '')
        THEN held.token ELSE lease.token
    END,
    advanced = lease.advanced OR held.next_sequence > lease.next_sequence,
    attempts = CASE
        WHEN held.next_sequence >= lease.next_sequence THEN held.attempts ELSE lease.attempts
    END
FROM held
WHERE lease.namespace = held.namespace AND lease.feed = held.feed
    AND lease.group_name = held.group_name AND lease.partition = held.partition
RETURNING
    lease.namespace, lease.feed, lease.group_name, lease.partition, lease.next_sequence,
    lease.token, lease.owner, lease.epoch, lease.version, lease.advanced, lease.attempts,
    lease.offered_to, lease.weight, lease.ttl_s,
    extract(epoch FROM clock_timestamp() - lease.changed_at)::double precision

-- name: rewind
WITH given AS (
    SELECT * FROM unnest(
        %(namespace)s::text[], %(feed)s::text[], %(group_name)s::text[], %(partition)s::text[],
        %(version)s::text[], %(next_sequence)s::bigint[], %(token)s::text[]
    ) AS given (namespace, feed, group_name, partition, version, next_sequence, token)
),
unchanged AS MATERIALIZED (
    SELECT given.*
    FROM {schema}.leasehold_leases AS lease
    JOIN given USING (namespace, feed, group_name, partition)
    WHERE lease.version::text = given.version AND NOT lease.closed
    ORDER BY lease.namespace, lease.feed, lease.group_name, lease.partition
    FOR NO KEY UPDATE OF lease
)
UPDATE {schema}.leasehold_leases AS lease SET
    next_sequence = unchanged.next_sequence,
    token = unchanged.token,
    attempts = 0,
    owner = NULL,
    offered_to = NULL,
    epoch = lease.epoch + 1,
    version = lease.version + 1,
    changed_at = clock_timestamp()
FROM unchanged
WHERE lease.namespace = unchanged.namespace AND lease.feed = unchanged.feed
    AND lease.group_name = unchanged.group_name AND lease.partition = unchanged.partition
RETURNING
    lease.namespace, lease.feed, lease.group_name, lease.partition, lease.next_sequence,
    lease.token, lease.owner, lease.epoch, lease.version, lease.advanced, lease.attempts,
    lease.offered_to, lease.weight, lease.ttl_s, 0.0::double precision

-- name: split
-- A parent closed meanwhile by another connection meets the condition too: the answer is yes. A
-- child that was made beside its parent, and that nobody ever held, takes over the parent's progress.
WITH before AS MATERIALIZED (
    SELECT closed FROM {schema}.leasehold_leases
    WHERE namespace = %(namespace)s AND feed = %(feed)s AND group_name = %(group_name)s
        AND partition = %(parent)s
),
parent AS (
    UPDATE {schema}.leasehold_leases SET closed = true
    WHERE namespace = %(namespace)s AND feed = %(feed)s AND group_name = %(group_name)s
        AND partition = %(parent)s
        AND (closed OR (owner = %(owner)s AND epoch = %(epoch)s))
    RETURNING namespace, feed, group_name
),
children AS (
    INSERT INTO {schema}.leasehold_leases
        (namespace, feed, group_name, ttl_s, partition, next_sequence, token)
    SELECT parent.*, %(ttl_s)s, given.*
    FROM parent, unnest(
        %(partition)s::text[], %(next_sequence)s::bigint[], %(token)s::text[]
    ) AS given (id)
    WHERE NOT (SELECT closed FROM before) AND given.id <> %(parent)s
    ORDER BY given.id
    ON CONFLICT (namespace, feed, group_name, partition) DO UPDATE
    SET next_sequence = excluded.next_sequence, token = excluded.token
    WHERE leasehold_leases.epoch = 0
)
SELECT 1 FROM parent

-- name: groups
SELECT DISTINCT namespace, feed, group_name FROM {schema}.leasehold_leases WHERE NOT closed
