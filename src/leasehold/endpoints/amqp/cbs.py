"""``$cbs``: clients bring the token that lets them use the hub."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from leasehold.endpoints.amqp.tokens import TOKEN_TYPE, TokenRefused, check, covers, path_of

if TYPE_CHECKING:
    from leasehold.endpoints.amqp.connection import AmqpConnection

OK, BAD_REQUEST, UNAUTHORIZED, NOT_FOUND = 202, 400, 401, 404


def put_token(
    connection: AmqpConnection, application: dict[str, Any], token: Any
) -> tuple[int, str, Any]:
    if application.get("operation") != "put-token":
        return BAD_REQUEST, "the only operation here is put-token", None
    kind, name = application.get("type"), application.get("name")
    if kind != TOKEN_TYPE or not isinstance(token, str):
        return (
            UNAUTHORIZED,
            f"InvalidTokenType: this endpoint checks shared access signatures ({TOKEN_TYPE}) only",
            None,
        )
    path = path_of(name) if isinstance(name, str) else ""
    hub = path.split("/")[0]
    if hub and not connection.endpoint.knows(hub):
        return NOT_FOUND, f"The messaging entity '{name}' could not be found.", None
    try:
        granted = check(token, connection.endpoint.access, time.time())
    except TokenRefused as error:
        return UNAUTHORIZED, str(error), None
    if not covers(granted.path, path):
        return UNAUTHORIZED, "InvalidAudience: the token is for something else", None
    connection.grant(granted)
    return OK, "Accepted", None
