"""Partitioned feeds, shared by lease among many instances."""
