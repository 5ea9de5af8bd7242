-- name: create
CREATE TABLE clocks (
    boot_id TEXT PRIMARY KEY,
    boot_us INTEGER NOT NULL,
    own_us INTEGER NOT NULL,
    wall_us INTEGER NOT NULL,
    doubted_us INTEGER
);

-- name: sights
SELECT boot_id, boot_us, own_us, wall_us, doubted_us FROM clocks;

-- name: see
INSERT INTO clocks (boot_us, own_us, wall_us, doubted_us, boot_id) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (boot_id) DO UPDATE
SET boot_us = excluded.boot_us, own_us = excluded.own_us, wall_us = excluded.wall_us,
    doubted_us = excluded.doubted_us;

-- name: forget
DELETE FROM clocks WHERE boot_id NOT IN (SELECT boot_id FROM clocks ORDER BY own_us DESC LIMIT ?);
