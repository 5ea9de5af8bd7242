"""How readings are processed: aggregates, alerts, notifications, an archive."""
