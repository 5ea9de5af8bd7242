"""Kafka topics as feeds: ``open_feed("kafka://b1:9092,b2:9092/topic")``. Needs the extra
``kafka``."""

from leasehold.feeds.kafka.feed import KafkaFeed
from leasehold.feeds.kafka.sender import KafkaSender

__all__ = ["KafkaFeed", "KafkaSender"]
