"""The change feed of an Azure Cosmos DB container."""

from leasehold.feeds.cosmos.documents import CosmosContainer
from leasehold.feeds.cosmos.feed import CosmosFeed, open_cosmos

__all__ = ["CosmosContainer", "CosmosFeed", "open_cosmos"]
