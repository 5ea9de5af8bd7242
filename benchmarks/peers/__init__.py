"""Leasehold beside other ways to share a Kafka topic: the same broker, topic and input for all."""
