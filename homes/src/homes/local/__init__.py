"""The machine: where files are, who may read them, logs, one process at a time."""
