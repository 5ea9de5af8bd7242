-- name: create
CREATE TABLE container (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    identity TEXT NOT NULL,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    key_path TEXT NOT NULL,
    document_bytes_max INTEGER NOT NULL,
    ttl_s REAL,
    versions_s REAL,
    split_documents INTEGER,
    created_us INTEGER NOT NULL,
    hashing TEXT NOT NULL
);
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    next_lsn INTEGER NOT NULL,
    last_us INTEGER NOT NULL,
    layout INTEGER NOT NULL
);
-- Ranges are never removed: their rows below tell who their ancestors were.
CREATE TABLE ranges (
    id INTEGER PRIMARY KEY,
    parent INTEGER,
    low INTEGER NOT NULL,
    high INTEGER NOT NULL,
    next_lsn INTEGER NOT NULL,
    last_us INTEGER,
    documents INTEGER NOT NULL,
    kept_from INTEGER NOT NULL,
    split_above INTEGER,
    is_split INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX ranges_by_parent ON ranges (parent);
-- A document is stored under the LSN of its newest change and stays in the range that it was written
-- in: a split moves none of them. A range's feed is what lies in its ancestors, within its bounds, and
-- then its own; LSNs of the one are all below those of the other.
CREATE TABLE documents (
    lsn INTEGER PRIMARY KEY,
    range INTEGER NOT NULL,
    hash INTEGER NOT NULL,
    key NOT NULL,
    id TEXT NOT NULL,
    time_us INTEGER NOT NULL,
    expires_us INTEGER,
    body TEXT NOT NULL
);
CREATE UNIQUE INDEX documents_by_key ON documents (hash, key, id);
CREATE INDEX documents_by_range ON documents (range, lsn, hash, expires_us);
CREATE INDEX documents_by_expiry ON documents (expires_us) WHERE expires_us IS NOT NULL;
-- Each state of a document is stored once: the newest in documents, older ones with the change that
-- replaced them.
CREATE TABLE changes (
    lsn INTEGER PRIMARY KEY,
    range INTEGER NOT NULL,
    hash INTEGER NOT NULL,
    key NOT NULL,
    operation TEXT NOT NULL,
    expired INTEGER NOT NULL,
    time_us INTEGER NOT NULL,
    arrived_us INTEGER,
    previous_lsn INTEGER,
    previous TEXT
);
CREATE INDEX changes_by_range ON changes (range, lsn, hash);
CREATE INDEX changes_by_previous ON changes (previous_lsn) WHERE previous_lsn IS NOT NULL;
-- LSNs from first_lsn on, up to the next row's, are of the generation with this random mark.
CREATE TABLE generations (
    first_lsn INTEGER PRIMARY KEY,
    mark TEXT NOT NULL
);

-- name: to_2
CREATE TABLE generations (
    first_lsn INTEGER PRIMARY KEY,
    mark TEXT NOT NULL
);
ALTER TABLE changes ADD COLUMN arrived_us INTEGER;
-- By the container's own clock from now on, which begins at 0.
UPDATE documents SET expires_us = expires_us - (SELECT last_us FROM head)
WHERE expires_us IS NOT NULL;

-- name: to_3
-- Documents stay where they are, so these keys stay hashed as they were.
ALTER TABLE container ADD COLUMN hashing TEXT NOT NULL DEFAULT 'fnv1a';

-- name: add_container
INSERT INTO container (one, identity, namespace, name, key_path, document_bytes_max, ttl_s,
                       versions_s, split_documents, created_us, hashing)
VALUES (1, :identity, :namespace, :name, :key_path, :document_bytes_max, :ttl_s,
        :versions_s, :split_documents, :created_us, :hashing);

-- name: add_head
INSERT INTO head (one, next_lsn, last_us, layout) VALUES (1, 1, 0, 1);

-- name: settings
SELECT identity, namespace, name, key_path, document_bytes_max, ttl_s, versions_s, split_documents,
       created_us, hashing
FROM container;

-- name: change_ttl
UPDATE container SET ttl_s = :new;

-- name: change_expiry
-- Fields named ttl meant nothing while the container had no time to live.
UPDATE documents SET expires_us = CASE
    WHEN :new IS NULL THEN NULL
    WHEN json_type(body, '$.ttl') IN ('integer', 'real')
        AND (json_extract(body, '$.ttl') > 0 OR json_extract(body, '$.ttl') = -1)
        THEN CASE
            WHEN :old IS NOT NULL THEN expires_us
            WHEN json_extract(body, '$.ttl') > 0
                THEN :own_us + CAST(min(json_extract(body, '$.ttl'), :max) * 1000000 AS INTEGER)
        END
    WHEN :new = -1 THEN NULL
    WHEN :old > 0 AND expires_us IS NOT NULL
        THEN expires_us + CAST((:new - :old) * 1000000 AS INTEGER)
    ELSE :own_us + CAST(:new * 1000000 AS INTEGER)
END
WHERE expires_us IS NULL OR expires_us > :own_us;

-- name: head
SELECT next_lsn, last_us, layout FROM head;

-- name: move_head
UPDATE head SET next_lsn = ?, last_us = ?;

-- name: begin_generation
INSERT INTO generations (first_lsn, mark) VALUES (?, ?);

-- name: newest_mark
SELECT mark FROM generations ORDER BY first_lsn DESC LIMIT 1;

-- name: marks
SELECT first_lsn, mark FROM generations
WHERE first_lsn <= :last AND first_lsn >= coalesce(
    (SELECT max(first_lsn) FROM generations WHERE first_lsn <= :first), 0)
ORDER BY first_lsn;

-- name: end_of_generation
SELECT coalesce((SELECT min(first_lsn) FROM generations WHERE first_lsn > g.first_lsn),
                (SELECT next_lsn FROM head))
FROM generations g WHERE mark = ?;

-- name: new_layout
UPDATE head SET layout = layout + 1;

-- name: leaves
SELECT low, id FROM ranges WHERE NOT is_split ORDER BY low;

-- name: add_range
INSERT INTO ranges
    (id, parent, low, high, next_lsn, last_us, documents, kept_from, split_above)
SELECT coalesce(max(id) + 1, 0),
       :parent, :low, :high, :next_lsn, :last_us, :documents, :kept_from, :split_above
FROM ranges
RETURNING id;

-- name: close_range
UPDATE ranges SET is_split = 1 WHERE id = ?;

-- name: move_range
UPDATE ranges SET next_lsn = ?, last_us = ?, documents = documents + ? WHERE id = ?
RETURNING documents, split_above;

-- name: split_later
UPDATE ranges SET split_above = ? WHERE id = ?;

-- name: ranges
SELECT id, parent, low, high, next_lsn, last_us, documents, kept_from, is_split
FROM ranges ORDER BY id;

-- name: line
WITH RECURSIVE line AS (
    SELECT *, 0 AS distance FROM ranges WHERE id = ?
    UNION ALL
    SELECT r.*, distance + 1 FROM line JOIN ranges r ON r.id = line.parent
)
SELECT id, parent, low, high, next_lsn, last_us, documents, kept_from, is_split
FROM line ORDER BY distance DESC;

-- name: children
SELECT id FROM ranges WHERE parent = ? ORDER BY low;

-- name: nth
SELECT hash, key, id FROM documents INDEXED BY documents_by_key
WHERE hash BETWEEN ? AND ? ORDER BY hash, key, id LIMIT 1 OFFSET ?;

-- name: count_same_hash
SELECT count(*), count(*) FILTER (WHERE (key, id) < (:key, :id))
FROM documents INDEXED BY documents_by_key WHERE hash = :hash;

-- name: count_between
SELECT count(*) FROM documents INDEXED BY documents_by_key WHERE hash BETWEEN ? AND ?;

-- name: find
SELECT lsn, hash, key, expires_us, body FROM documents WHERE hash = ? AND key = ? AND id = ?;

-- name: list
SELECT body FROM documents
WHERE hash = :hash AND key = :key AND id > :after AND (expires_us IS NULL OR expires_us > :own_us)
ORDER BY id LIMIT :limit;

-- name: count
SELECT count(*) FROM documents
WHERE hash = :hash AND key = :key AND (expires_us IS NULL OR expires_us > :own_us);

-- name: scan
SELECT hash, key, id, body FROM documents INDEXED BY documents_by_key
WHERE hash BETWEEN :low AND :high AND (hash, key, id) > (:hash, :key, :id)
  AND (expires_us IS NULL OR expires_us > :own_us)
ORDER BY hash, key, id;

-- name: add_document
INSERT INTO documents (lsn, range, hash, key, id, time_us, expires_us, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: replace_document
UPDATE documents SET lsn = ?, range = ?, time_us = ?, expires_us = ?, body = ? WHERE lsn = ?;

-- name: remove_document
DELETE FROM documents WHERE lsn = ?;

-- name: expired
SELECT lsn, hash, key, expires_us, body FROM documents WHERE expires_us <= ?
ORDER BY expires_us LIMIT ?;

-- name: add_change
INSERT INTO changes
    (lsn, range, hash, key, operation, expired, time_us, arrived_us, previous_lsn, previous)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: latest_read
SELECT lsn, 'upsert', 0, time_us, key, body, NULL
FROM documents INDEXED BY documents_by_range
WHERE range = :range AND lsn >= :lsn AND hash BETWEEN :low AND :high
  AND (expires_us IS NULL OR expires_us > :own_us)
ORDER BY lsn LIMIT :limit;

-- name: latest_next
SELECT lsn, time_us FROM documents INDEXED BY documents_by_range
WHERE range = :range AND lsn >= :lsn AND hash BETWEEN :low AND :high
  AND (expires_us IS NULL OR expires_us > :own_us)
ORDER BY lsn LIMIT 1;

-- name: latest_count
SELECT count(*) FROM documents INDEXED BY documents_by_range
WHERE range = :range AND lsn >= :lsn AND hash BETWEEN :low AND :high
  AND (expires_us IS NULL OR expires_us > :own_us);

-- name: latest_time
SELECT lsn, time_us FROM documents WHERE lsn >= ? ORDER BY lsn LIMIT 1;

-- name: all_read
SELECT c.lsn, c.operation, c.expired, c.time_us, c.key, coalesce(d.body, n.previous), c.previous
FROM changes c INDEXED BY changes_by_range
LEFT JOIN documents d ON d.lsn = c.lsn
LEFT JOIN changes n ON n.previous_lsn = c.lsn
WHERE c.range = :range AND c.lsn >= :lsn AND c.hash BETWEEN :low AND :high
ORDER BY c.lsn LIMIT :limit;

-- name: all_next
SELECT lsn, time_us FROM changes INDEXED BY changes_by_range
WHERE range = :range AND lsn >= :lsn AND hash BETWEEN :low AND :high
ORDER BY lsn LIMIT 1;

-- name: all_count
SELECT count(*) FROM changes INDEXED BY changes_by_range
WHERE range = :range AND lsn >= :lsn AND hash BETWEEN :low AND :high;

-- name: all_time
SELECT lsn, time_us FROM changes WHERE lsn >= ? ORDER BY lsn LIMIT 1;

-- name: oldest_changes
SELECT lsn, hash, coalesce(arrived_us, 0) FROM changes ORDER BY lsn LIMIT ?;

-- name: remove_changes
DELETE FROM changes WHERE lsn <= ?;

-- name: keep_from
UPDATE ranges SET kept_from = max(kept_from, ?) WHERE id = ?;
