"""Shared ground for the adapters: files, queries and clocks of this machine."""
