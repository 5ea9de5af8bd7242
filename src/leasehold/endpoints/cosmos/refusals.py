"""What the endpoint refuses, with Cosmos DB's status and sub-status."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    409: "Conflict",
    410: "Gone",
    412: "PreconditionFailed",
    413: "RequestEntityTooLarge",
    431: "RequestHeaderFieldsTooLarge",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}
NAME_NOT_FOUND = 1003
RANGE_GONE = 1002
WRONG_KEY = 1001
NEEDS_PLAN = 1004
WRONG_COLLECTION = 1024


class Refusal(Exception):
    """An answer other than success."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        substatus: int | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.substatus = substatus
        self.body = {"code": NAMES.get(status, "InternalServerError"), "message": message}
        self.body |= extra or {}
