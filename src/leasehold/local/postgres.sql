-- What every connection needs, whatever its tables hold.

-- name: process
SELECT pg_backend_pid()

-- name: begin
BEGIN ISOLATION LEVEL READ COMMITTED

-- name: settings
-- A plan made while there were few rows is kept when there are many: it must use the keys. A plan
-- that cannot use them then looks so dear that it would be compiled, for longer than it runs.
SELECT
    set_config('jit', 'off', %(local)s),
    set_config('enable_seqscan', 'off', %(local)s),
    set_config('default_transaction_isolation', 'read committed', %(local)s),
    set_config('statement_timeout', %(timeout_ms)s, %(local)s),
    set_config('lock_timeout', %(lock_timeout_ms)s, %(local)s)

-- name: lock
SELECT pg_advisory_xact_lock(hashtextextended('leasehold schema ' || %(schema)s, 0))

-- name: has_schema
SELECT 1 FROM pg_namespace WHERE nspname = %(schema)s

-- name: make_schema
CREATE SCHEMA {schema}
