"""The home-security application: sensors, alerts, and how they are processed."""
