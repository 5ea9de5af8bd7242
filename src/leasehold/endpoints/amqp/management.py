"""``$management``: what clients ask about the hub and its partitions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from leasehold.endpoints.amqp.codec import AmqpArray, Int, Timestamp
from leasehold.endpoints.amqp.errors import NOT_ALLOWED, DeliveryRejected, LinkFailed
from leasehold.endpoints.amqp.tokens import TokenRefused, check, covers
from leasehold.errors import BadInput
from leasehold.feeds.hub import Hub

if TYPE_CHECKING:
    from leasehold.endpoints.amqp.connection import AmqpConnection

OK, UNAUTHORIZED, NOT_FOUND = 200, 401, 404
HUB, PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"


def read_properties(
    connection: AmqpConnection, application: dict[str, Any], _: Any
) -> tuple[int, str, Any]:
    if application.get("operation") != "READ":
        raise DeliveryRejected(NOT_ALLOWED, "the only operation here is READ")
    name, kind = application.get("name"), application.get("type")
    if not isinstance(name, str) or not connection.endpoint.knows(name):
        return NOT_FOUND, f"The messaging entity '{name}' could not be found.", None
    refused = _why_not(connection, f"{name}/$management", application.get("security_token"))
    if refused:
        return UNAUTHORIZED, refused, None
    hub = connection.endpoint.hub
    if kind == HUB:
        return OK, "OK", _hub(hub)
    if kind != PARTITION:
        return NOT_FOUND, f"there are no entities of type {kind}", None
    try:
        return OK, "OK", _partition(hub, str(application.get("partition")))
    except BadInput as error:
        return NOT_FOUND, f"The messaging entity could not be found: {error}", None


def _why_not(connection: AmqpConnection, path: str, token: Any) -> str:
    """A token may have come by ``$cbs``, or with the request, as Java sends it."""
    try:
        connection.require_token(path)
    except LinkFailed as error:
        if not isinstance(token, str):
            return str(error)
    else:
        return ""
    try:
        granted = check(token, connection.endpoint.access, time.time())
    except TokenRefused as error:
        return str(error)
    return "" if covers(granted.path, path) else "InvalidAudience: the token is for something else"


def _hub(hub: Hub) -> dict[str, Any]:
    partitions = hub.partition_ids
    return {
        "name": hub.name,
        "type": HUB,
        "created_at": _time(hub.properties().created_at),
        "partition_count": Int(len(partitions)),
        "partition_ids": AmqpArray(list(partitions)),
        "georeplication_factor": Int(1),
    }


def _partition(hub: Hub, partition: str) -> dict[str, Any]:
    known = hub.partition_properties(partition)
    ever = known.next_sequence > 0
    return {
        "name": hub.name,
        "type": PARTITION,
        "partition": partition,
        "begin_sequence_number": known.first_sequence,
        "last_enqueued_sequence_number": known.last_sequence,
        "last_enqueued_offset": known.last_offset if ever else "-1",
        "last_enqueued_time_utc": _time(known.last_enqueued_at),
        "is_partition_empty": known.events == 0,
        "runtime_info_retrieval_time_utc": Timestamp(int(time.time() * 1000)),
    }


def _time(at: Any) -> Timestamp:
    return Timestamp(0 if at is None else int(at.timestamp() * 1000))
