"""Leases in a SQLite file, for all processes of one machine."""

from leasehold.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
