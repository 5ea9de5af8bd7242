"""The part of Cosmos DB's query language that its clients use themselves."""

from leasehold.endpoints.cosmos.sql.parser import parse
from leasehold.endpoints.cosmos.sql.run import Running
from leasehold.endpoints.cosmos.sql.tree import Query

__all__ = ["Query", "Running", "parse"]
