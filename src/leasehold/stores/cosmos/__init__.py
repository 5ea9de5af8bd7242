"""Leases in an Azure Cosmos DB container."""

from leasehold.stores.cosmos.store import CosmosStore

__all__ = ["CosmosStore"]
