"""Leases in a PostgreSQL database, for instances on many machines."""

from leasehold.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
