"""Answers with the headers that clients of Cosmos DB read."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

from leasehold.endpoints.cosmos.http import Reply
from leasehold.endpoints.cosmos.refusals import Refusal

VERSION = "2018-12-31"
SESSION = "x-ms-session-token"


def reply(
    status: int, value: Any = None, headers: Mapping[str, str] | None = None, charge: float = 1.0
) -> Reply:
    known = {
        "content-type": "application/json",
        "date": formatdate(usegmt=True),
        "x-ms-request-charge": f"{charge:.2f}",
        "x-ms-activity-id": str(uuid.uuid4()),
        "x-ms-version": VERSION,
        "x-ms-schemaversion": "1.18",
        "x-ms-gatewayversion": "version=2.14.0",
        "x-ms-serviceversion": "version=2.14.0.0",
        SESSION: "0:-1#0",
    }
    body = b"" if value is None else json.dumps(value, separators=(",", ":")).encode()
    return Reply(status, known | dict(headers or {}), body)


def unlocated(answer: Reply) -> Reply:
    """Of no range: without a session token, from which clients would conclude that it is of one
    that they do not know, and look all of them up again."""
    kept = {name: value for name, value in answer.headers.items() if name != SESSION}
    return Reply(answer.status, kept, answer.body)


def refused(refusal: Refusal) -> Reply:
    headers = {} if refusal.substatus is None else {"x-ms-substatus": str(refusal.substatus)}
    return reply(refusal.status, refusal.body, headers)


def listed(owner: str, name: str, values: list[Any], **headers: str) -> Reply:
    body = {"_rid": owner, name: values, "_count": len(values)}
    shown = {"x-ms-item-count": str(len(values))} | {
        key.replace("_", "-"): value for key, value in headers.items()
    }
    return reply(200, body, shown, charge=1.0 + 0.05 * len(values))
