"""The embedded hub over AMQP 1.0, so that official Event Hubs clients work with it.

For development and tests: one process, no replication, no quotas.
"""

from leasehold.endpoints.amqp.endpoint import AmqpEndpoint
from leasehold.endpoints.amqp.secret import AccessKey, access_key

__all__ = ["AccessKey", "AmqpEndpoint", "access_key"]
