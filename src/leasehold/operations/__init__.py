"""Watching and steering a group from outside."""
