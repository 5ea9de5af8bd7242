-- name: create
CREATE TABLE hub (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    partitions INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    batch_bytes_max INTEGER NOT NULL,
    retention_s REAL,
    retention_bytes INTEGER,
    created_us INTEGER NOT NULL
);
CREATE TABLE partitions (
    id INTEGER PRIMARY KEY,
    next_sequence INTEGER NOT NULL DEFAULT 0,
    last_offset INTEGER NOT NULL,
    last_enqueued_us INTEGER,
    stored_bytes INTEGER NOT NULL DEFAULT 0,
    body_bytes INTEGER NOT NULL DEFAULT 0
);
-- Appended in the order of sending, whatever the partition, so that a send fills pages instead of
-- touching one page per partition; the small index finds a partition's rows.
CREATE TABLE batches (
    id INTEGER PRIMARY KEY,
    partition_id INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    enqueued_us INTEGER NOT NULL,
    columns INTEGER NOT NULL,
    message_bytes INTEGER NOT NULL,
    body_bytes INTEGER,
    arrived_us INTEGER,
    data BLOB NOT NULL
);
CREATE UNIQUE INDEX batches_by_sequence ON batches (partition_id, first_sequence);

-- name: to_2
-- Rows without body_bytes are of format 1: their offsets count the bytes of bodies, and one more for
-- each event.
ALTER TABLE batches ADD COLUMN body_bytes INTEGER;
ALTER TABLE batches ADD COLUMN arrived_us INTEGER;
ALTER TABLE partitions ADD COLUMN body_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE partitions SET body_bytes = coalesce(
    (SELECT sum(last_offset - first_offset - (last_sequence - first_sequence + 1))
     FROM batches WHERE partition_id = partitions.id), 0);

-- name: add_hub
INSERT INTO hub (one, identity, namespace, name, partitions, first_offset, batch_bytes_max,
                 retention_s, retention_bytes, created_us)
VALUES (1, :identity, :namespace, :name, 0, :first_offset, :batch_bytes_max,
        :retention_s, :retention_bytes, :created_us);

-- name: raise_partitions
UPDATE hub SET partitions = :to WHERE partitions < :to;

-- name: add_partition
INSERT INTO partitions (id, last_offset) SELECT ?, first_offset FROM hub;

-- name: settings
SELECT identity, namespace, name, partitions, batch_bytes_max, retention_s, retention_bytes,
       created_us
FROM hub;

-- name: set_retention
UPDATE hub SET retention_s = ?, retention_bytes = ?;

-- name: count_partitions
SELECT partitions FROM hub;

-- name: ends
SELECT id, next_sequence, last_offset, last_enqueued_us FROM partitions;

-- name: end
SELECT id, next_sequence, last_offset, last_enqueued_us FROM partitions WHERE id = ?;

-- name: add_batch
INSERT INTO batches (partition_id, first_sequence, last_sequence, first_offset, last_offset,
                     enqueued_us, columns, message_bytes, body_bytes, arrived_us, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: move_end
UPDATE partitions
SET next_sequence = ?, last_offset = ?, last_enqueued_us = ?,
    stored_bytes = stored_bytes + ?, body_bytes = body_bytes + ?
WHERE id = ?;

-- name: read
SELECT first_sequence, last_sequence, first_offset, last_offset, body_bytes IS NULL, enqueued_us,
       columns, message_bytes, CASE last_offset WHEN :known THEN NULL ELSE data END
FROM batches
WHERE partition_id = :partition
  AND first_sequence >= coalesce(
      (SELECT max(first_sequence) FROM batches
       WHERE partition_id = :partition AND first_sequence <= :sequence), 0)
ORDER BY first_sequence;

-- name: place
SELECT first_sequence, last_sequence, first_offset, last_offset, body_bytes IS NULL, enqueued_us
FROM batches WHERE partition_id = ? AND first_sequence <= ?
ORDER BY first_sequence DESC LIMIT 1;

-- name: state
SELECT p.id, coalesce(b.first_sequence, p.next_sequence), p.next_sequence,
       coalesce(b.first_offset, p.last_offset), p.last_offset, p.last_enqueued_us, p.stored_bytes,
       p.body_bytes
FROM partitions p
LEFT JOIN batches b ON b.partition_id = p.id AND b.first_sequence =
     (SELECT min(first_sequence) FROM batches WHERE partition_id = p.id)
WHERE p.id BETWEEN ? AND ?
ORDER BY p.id;

-- name: oldest
SELECT id, partition_id, last_sequence - first_sequence + 1, length(data),
       coalesce(body_bytes, last_offset - first_offset - (last_sequence - first_sequence + 1))
FROM batches ORDER BY id LIMIT ?;

-- name: oldest_of
SELECT id, partition_id, last_sequence - first_sequence + 1, length(data),
       coalesce(body_bytes, last_offset - first_offset - (last_sequence - first_sequence + 1)),
       coalesce(arrived_us, 0), last_sequence
FROM batches WHERE partition_id = ? ORDER BY first_sequence LIMIT ?;

-- name: stored_bytes
SELECT sum(stored_bytes) FROM partitions;

-- name: remove
DELETE FROM batches WHERE id = ?;

-- name: less_stored
UPDATE partitions SET stored_bytes = stored_bytes - ?, body_bytes = body_bytes - ? WHERE id = ?;
