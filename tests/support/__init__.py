"""What tests of several parts stand on."""
