-- Each verb is one statement, whatever the number of leases: they come as a JSON array of rows.
-- monotonic() is the machine's clock. It is read while the statement already has its view of the
-- file, so it is never earlier than a stamp in that view.

-- name: has_version
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'leasehold_schema'

-- name: version
SELECT version FROM leasehold_schema

-- name: set_version
INSERT INTO leasehold_schema (version) VALUES (:version)

-- name: tables
CREATE TABLE leasehold_schema (
    only_row INTEGER PRIMARY KEY DEFAULT 1 CHECK (only_row = 1),
    version INTEGER NOT NULL
) STRICT;

CREATE TABLE leasehold_leases (
    namespace TEXT NOT NULL,
    feed TEXT NOT NULL,
    group_name TEXT NOT NULL,
    partition TEXT NOT NULL,
    next_sequence INTEGER NOT NULL,
    token TEXT NOT NULL,
    owner TEXT,
    epoch INTEGER NOT NULL DEFAULT 0,
    version INTEGER NOT NULL DEFAULT 1,
    advanced INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    offered_to TEXT,
    weight REAL NOT NULL DEFAULT 0.0,
    ttl_s REAL NOT NULL DEFAULT 0.0,
    changed_at REAL NOT NULL,
    closed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, feed, group_name, partition)
) STRICT, WITHOUT ROWID;

CREATE TABLE leasehold_members (
    namespace TEXT NOT NULL,
    feed TEXT NOT NULL,
    group_name TEXT NOT NULL,
    instance TEXT NOT NULL,
    incarnation TEXT NOT NULL,
    ttl_s REAL NOT NULL,
    leaving INTEGER NOT NULL,
    seen_at REAL NOT NULL,
    PRIMARY KEY (namespace, feed, group_name, instance)
) STRICT, WITHOUT ROWID

-- name: create
INSERT INTO leasehold_leases
    (namespace, feed, group_name, partition, next_sequence, token, ttl_s, changed_at)
SELECT
    :namespace, :feed, :group_name, value ->> 0, value ->> 1, value ->> 2, :ttl_s,
    (SELECT monotonic())
FROM json_each(:rows)
WHERE true
ON CONFLICT DO NOTHING

-- name: snapshot
SELECT
    (
        SELECT json_array(
            json_group_array(partition), json_group_array(next_sequence), json_group_array(token),
            json_group_array(owner), json_group_array(epoch), json_group_array(version),
            json_group_array(advanced), json_group_array(attempts), json_group_array(offered_to),
            json_group_array(weight), json_group_array(ttl_s),
            json_group_array((SELECT monotonic()) - changed_at)
        )
        FROM (
            SELECT * FROM leasehold_leases
            WHERE namespace = :namespace AND feed = :feed AND group_name = :group_name
                AND NOT closed
            ORDER BY partition
        )
    ),
    (
        SELECT json_array(
            json_group_array(instance), json_group_array(incarnation), json_group_array(ttl_s),
            json_group_array(leaving), json_group_array(seen_at),
            json_group_array((SELECT monotonic()) - seen_at)
        )
        FROM (
            SELECT * FROM leasehold_members
            WHERE namespace = :namespace AND feed = :feed AND group_name = :group_name
            ORDER BY instance
        )
    ),
    (
        SELECT json_group_array(partition) FROM leasehold_leases
        WHERE namespace = :namespace AND feed = :feed AND group_name = :group_name AND closed
    ),
    wall()

-- name: join
INSERT INTO leasehold_members
    (namespace, feed, group_name, instance, incarnation, ttl_s, leaving, seen_at)
VALUES
    (:namespace, :feed, :group_name, :instance, :incarnation, :ttl_s, :leaving, monotonic())
ON CONFLICT DO UPDATE SET
    incarnation = excluded.incarnation,
    ttl_s = excluded.ttl_s,
    leaving = excluded.leaving,
    seen_at = excluded.seen_at

-- name: forget
-- A stamp from the future was made before the machine was last started: its member is dead too.
DELETE FROM leasehold_members
WHERE namespace = :namespace AND feed = :feed AND group_name = :group_name
    AND (
        seen_at + ttl_s + :after_s < (SELECT monotonic())
        OR seen_at > (SELECT monotonic()) + 1.0
    )

-- name: heartbeat
INSERT INTO leasehold_members
    (namespace, feed, group_name, instance, incarnation, ttl_s, leaving, seen_at)
VALUES
    (:namespace, :feed, :group_name, :instance, :incarnation, :ttl_s, :leaving, monotonic())
ON CONFLICT DO UPDATE SET
    ttl_s = excluded.ttl_s,
    leaving = excluded.leaving,
    seen_at = excluded.seen_at
WHERE incarnation = excluded.incarnation
RETURNING 1

-- name: leave
DELETE FROM leasehold_members
WHERE namespace = :namespace AND feed = :feed AND group_name = :group_name
    AND instance = :instance AND incarnation = :incarnation

-- name: acquire
WITH given (namespace, feed, group_name, partition, version) AS (
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 FROM json_each(:rows)
)
UPDATE leasehold_leases AS lease SET
    owner = :owner,
    ttl_s = :ttl_s,
    offered_to = NULL,
    epoch = lease.epoch + 1,
    version = lease.version + 1,
    changed_at = (SELECT monotonic())
FROM given
WHERE lease.namespace = given.namespace AND lease.feed = given.feed
    AND lease.group_name = given.group_name AND lease.partition = given.partition
    AND CAST(lease.version AS TEXT) = given.version AND NOT lease.closed
RETURNING
    namespace, feed, group_name, partition, next_sequence, token, owner, epoch, version, advanced,
    attempts, offered_to, weight, ttl_s, 0.0

-- name: renew
WITH given (namespace, feed, group_name, partition, owner, epoch, weight, ttl_s) AS (
    SELECT
        value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
        value ->> 7
    FROM json_each(:rows)
)
UPDATE leasehold_leases AS lease SET
    weight = given.weight,
    ttl_s = given.ttl_s,
    version = lease.version + 1,
    changed_at = (SELECT monotonic())
FROM given
WHERE lease.namespace = given.namespace AND lease.feed = given.feed
    AND lease.group_name = given.group_name AND lease.partition = given.partition
    AND lease.owner = given.owner AND lease.epoch = given.epoch AND NOT lease.closed
RETURNING
    namespace, feed, group_name, partition, next_sequence, token, owner, epoch, version, advanced,
    attempts, offered_to, weight, ttl_s, 0.0

-- name: release
WITH given (namespace, feed, group_name, partition, owner, epoch, offered_to) AS (
    SELECT
        value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
    FROM json_each(:rows)
)
UPDATE leasehold_leases AS lease SET
    owner = NULL,
    offered_to = given.offered_to,
    version = lease.version + 1,
    changed_at = (SELECT monotonic())
FROM given
WHERE lease.namespace = given.namespace AND lease.feed = given.feed
    AND lease.group_name = given.group_name AND lease.partition = given.partition
    AND lease.owner = given.owner AND lease.epoch = given.epoch AND NOT lease.closed

-- name: checkpoint
-- The version stays: a checkpoint says nothing about who may take the lease.
WITH given (namespace, feed, group_name, partition, owner, epoch, next_sequence, token, attempts)
AS (
    SELECT
        value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
        value ->> 7, value ->> 8
    FROM json_each(:rows)
)
UPDATE leasehold_leases AS lease SET
    next_sequence = max(lease.next_sequence, given.next_sequence),
    token = iif(
        given.next_sequence > lease.next_sequence
        OR (given.next_sequence = lease.next_sequence AND given.token <> ''),
        given.token, lease.token
    ),
    advanced = lease.advanced OR given.next_sequence > lease.next_sequence,
    attempts = iif(given.next_sequence >= lease.next_sequence, given.attempts, lease.attempts)
FROM given
WHERE lease.namespace = given.namespace AND lease.feed = given.feed
    AND lease.group_name = given.group_name AND lease.partition = given.partition
    AND lease.owner = given.owner AND lease.epoch = given.epoch AND NOT lease.closed
RETURNING
    namespace, feed, group_name, partition, next_sequence, token, owner, epoch, version, advanced,
    attempts, offered_to, weight, ttl_s, (SELECT monotonic()) - changed_at

-- name: rewind
WITH given (namespace, feed, group_name, partition, version, next_sequence, token) AS (
    SELECT
        value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
    FROM json_each(:rows)
)
UPDATE leasehold_leases AS lease SET
    next_sequence = given.next_sequence,
    token = given.token,
    attempts = 0,
    owner = NULL,
    offered_to = NULL,
    epoch = lease.epoch + 1,
    version = lease.version + 1,
    changed_at = (SELECT monotonic())
FROM given
WHERE lease.namespace = given.namespace AND lease.feed = given.feed
    AND lease.group_name = given.group_name AND lease.partition = given.partition
    AND CAST(lease.version AS TEXT) = given.version AND NOT lease.closed
RETURNING
    namespace, feed, group_name, partition, next_sequence, token, owner, epoch, version, advanced,
    attempts, offered_to, weight, ttl_s, 0.0

-- name: split
-- Children enter beside the parent's own row, which meets itself and is closed: all or nothing.
-- Of a parent closed before, only that row is left, and says so. A child that was made beside its
-- parent, and that nobody ever held, takes over the parent's progress.
WITH parent AS (
    SELECT * FROM leasehold_leases
    WHERE namespace = :namespace AND feed = :feed AND group_name = :group_name
        AND partition = :parent
        AND (closed OR (owner = :owner AND epoch = :epoch))
)
INSERT INTO leasehold_leases
    (namespace, feed, group_name, partition, next_sequence, token, ttl_s, changed_at)
SELECT namespace, feed, group_name, partition, next_sequence, token, :ttl_s, changed_at FROM parent
UNION ALL
SELECT
    namespace, feed, group_name, value ->> 0, value ->> 1, value ->> 2, :ttl_s,
    (SELECT monotonic())
FROM parent, json_each(:rows)
WHERE NOT closed
ON CONFLICT DO UPDATE SET
    closed = (partition = :parent),
    next_sequence = excluded.next_sequence,
    token = excluded.token
WHERE partition = :parent OR epoch = 0
RETURNING 1

-- name: groups
SELECT DISTINCT namespace, feed, group_name FROM leasehold_leases WHERE NOT closed
