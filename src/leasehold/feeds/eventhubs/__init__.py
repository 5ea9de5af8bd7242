"""Azure Event Hubs, through the official SDK."""

from leasehold.feeds.eventhubs.feed import EventHubsFeed

__all__ = ["EventHubsFeed"]
