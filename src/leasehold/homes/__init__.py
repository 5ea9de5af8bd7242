"""The home-security application: sensors, alerts, and what is made of them."""
