"""Measurements, each beside a plain way of doing the same, in one run on one machine."""
