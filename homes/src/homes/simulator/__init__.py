"""The sensors of many homes: believable days, sent to a hub."""
