"""The embedded feeds over others' protocols, for development and tests with official clients."""
