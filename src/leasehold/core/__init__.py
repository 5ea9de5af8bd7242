"""The pure core: values and decisions. No IO, no clock, no environment, no randomness."""
