"""The embedded container over Cosmos DB's REST protocol, for development and tests."""

from leasehold.endpoints.cosmos.server import CosmosEndpoint, EndpointThread
from leasehold.endpoints.cosmos.signature import keep_key

__all__ = ["CosmosEndpoint", "EndpointThread", "keep_key"]
