"""The description of the JSON behind the pages, at ``/openapi.json``."""

from __future__ import annotations

from typing import Any

from homes.domain.kinds import KINDS
from homes.web.drills import DRILLS

Json = dict[str, Any]


def _object(required: Json, **optional: Json) -> Json:
    return {
        "type": "object",
        "properties": required | optional,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(kind: str) -> Json:
    return {"type": [kind, "null"]}


def _map(values: Json) -> Json:
    return {"type": "object", "additionalProperties": values}


TEXT, NUMBER, WHOLE, FLAG = (
    {"type": "string"},
    {"type": "number"},
    {"type": "integer"},
    {"type": "boolean"},
)
ERROR = _object({"error": TEXT})
SERIES = _object(
    {
        "start_ms": WHOLE,
        "step_s": WHOLE,
        "levels": _object({kind: _list(_or_null("number")) for kind in KINDS}),
    }
)
SENSOR = _object(
    {
        "kind": {"enum": list(KINDS)},
        "value": NUMBER,
        "active": FLAG,
        "ts_ms": WHOLE,
        "battery": _or_null("integer"),
        "battery_low": FLAG,
        "silent": FLAG,
    }
)
ALERT = _object(
    {
        "id": TEXT,
        "kind": TEXT,
        "ts_ms": WHOLE,
        "value": _or_null("number"),
        "ended_ms": _or_null("integer"),
    }
)
HOME = _object(
    {
        "home": TEXT,
        "now_ms": WHOLE,
        "state": {"enum": ["quiet", "open", "alarm", "silent", "loading"]},
        "why": _list(TEXT),
        "sensors": _list(SENSOR),
        "hour": SERIES,
        "alerts": _list(ALERT),
        "failing": TEXT,
        "loading": FLAG,
        "waiting": TEXT,
        "drills": _list({"enum": list(DRILLS)}),
    }
)
CYCLE = _object(
    {
        "at_ms": WHOLE,
        "target_s": NUMBER,
        "seconds": NUMBER,
        "events": WHOLE,
        "bytes": WHOLE,
        "parts": _object({"plan": NUMBER, "job": NUMBER, "commit": NUMBER}),
    }
)
GROUP = _object(
    {
        "name": TEXT,
        "feed": TEXT,
        "failing": TEXT,
        "instances": _list(
            _object(
                {
                    "name": TEXT,
                    "live": FLAG,
                    "seen_s": _or_null("number"),
                    "partitions": _list(TEXT),
                    "cycle": {"anyOf": [CYCLE, {"type": "null"}]},
                }
            )
        ),
        "partitions": _list(
            _object(
                {
                    "id": TEXT,
                    "owner": _or_null("string"),
                    "live": FLAG,
                    "lag_events": WHOLE,
                    "lag_s": _or_null("number"),
                    "processed_per_s": _or_null("number"),
                    "stuck": FLAG,
                    "attempts": WHOLE,
                }
            )
        ),
        "lag_events": _or_null("integer"),
        "lag_s": _or_null("number"),
        "incoming_per_s": _or_null("number"),
        "processed_per_s": _or_null("number"),
        "samples": _list(_object({"at_ms": WHOLE, "in": NUMBER, "done": NUMBER, "lag": WHOLE})),
    }
)
OPERATIONS = _object(
    {
        "groups": _list(GROUP),
        "moves": _list(
            _object(
                {
                    "at_ms": WHOLE,
                    "group": TEXT,
                    "partition": TEXT,
                    "from": _or_null("string"),
                    "to": _or_null("string"),
                    "how": {"enum": ["claimed", "moved", "failed over"]},
                }
            )
        ),
        "dead_letters": _map(WHOLE),
        "request_units_per_s": _map(_map(NUMBER)),
        "failing": TEXT,
        "fleet": _object(
            {
                "available": FLAG,
                "instances": _list(_object({"name": TEXT, "state": TEXT})),
                "news": _list(_object({"at_ms": WHOLE, "text": TEXT})),
            }
        ),
        "co_detectors": _object({"available": FLAG, "added": FLAG}),
        "actions": _list(_object({"at_ms": WHOLE, "text": TEXT})),
        "waiting": TEXT,
        "table": _object(
            {
                "version": WHOLE,
                "loaded": FLAG,
                "homes": WHOLE,
                "failing": TEXT,
                "rejected": _map(WHOLE),
            }
        ),
    }
)
DRILL = _object({"kind": {"type": "string", "minLength": 1, "maxLength": 256}})
NAME = _object({"name": {"type": "string", "minLength": 1, "maxLength": 256}})


def _answer(about: str, schema: Json, media: str = "application/json") -> Json:
    return {"description": about, "content": {media: {"schema": schema}}}


def _operation(
    id: str,
    about: str,
    answers: Json,
    *,
    role: str = "",
    body: Json | None = None,
) -> Json:
    refusals = {"401": _answer("not signed in", ERROR), "403": _answer("not for you", ERROR)}
    found: Json = {"operationId": id, "summary": about, "responses": dict(answers)}
    if role:
        found["security"] = [{"session": []}]
        found["responses"] |= refusals | {"503": _answer("not available right now", ERROR)}
        found["tags"] = [role]
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return found


def _stream(id: str, about: str, role: str) -> Json:
    answers = {
        "200": _answer("server-sent events", TEXT, "text/event-stream"),
        "429": _answer("too many open pages", ERROR),
    }
    return {"get": _operation(id, about, answers, role=role)}


def _get(id: str, about: str, schema: Json, role: str) -> Json:
    return {"get": _operation(id, about, {"200": _answer("as it is now", schema)}, role=role)}


def _post(
    id: str, about: str, schema: Json, body: Json | None = None, role: str = "operator"
) -> Json:
    answers = {
        "202": _answer("it is being done", schema),
        "404": _answer("there is nothing to do it to", ERROR),
        "409": _answer("it cannot be done", ERROR),
        "413": _answer("the body is too large", ERROR),
    }
    if body is not None:
        answers["400"] = _answer("the body does not fit", ERROR)
        answers["415"] = _answer("the body is no JSON", ERROR)
    return {"post": _operation(id, about, answers, role=role, body=body)}


DESCRIPTION: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "Leasehold homes",
        "version": "1",
        "description": "A home's id is never given: it is that of the session. Requests that "
        "change something need an Origin header that names this server.",
    },
    "paths": {
        "/api/home": _get("home", "The signed-in resident's home", HOME, "resident"),
        "/api/home/day": _get("day", "Its last 24 hours", SERIES, "resident"),
        "/api/home/live": _stream("homeLive", "The home, again whenever it changes", "resident"),
        "/api/home/drill": _post(
            "drill", "Raise an alarm in this home of the demo", DRILL, DRILL, role="resident"
        ),
        "/api/operations": _get("operations", "All groups", OPERATIONS, "operator"),
        "/api/operations/live": _stream("operationsLive", "The same, live", "operator"),
        "/api/operations/instances": _post("addInstance", "Add a pipeline instance", NAME),
        "/api/operations/instances/stop": _post(
            "stopInstance", "Stop an instance in good order", NAME, NAME
        ),
        "/api/operations/instances/kill": _post("killInstance", "Kill an instance", NAME, NAME),
        "/api/operations/co-detectors": _post(
            "addCoDetectors",
            "Give every home a carbon monoxide detector",
            _object({"added": FLAG}),
        ),
        "/metrics": {
            "get": _operation(
                "metrics",
                "In the Prometheus text format; the bearer token is the metrics token",
                {
                    "200": _answer("the numbers", TEXT, "text/plain"),
                    "401": _answer("not signed in", ERROR),
                    "429": _answer("too many tries", ERROR),
                },
            )
            | {"security": [{"session": []}, {"password": []}]}
        },
        "/healthz": {
            "get": _operation(
                "health",
                "Whether this process works",
                {
                    "200": _answer("it does", TEXT, "text/plain"),
                    "503": _answer("the table cannot be read", TEXT, "text/plain"),
                },
            )
        },
    },
    "components": {
        "securitySchemes": {
            "session": {"type": "apiKey", "in": "cookie", "name": "leasehold_session"},
            "password": {"type": "http", "scheme": "bearer"},
        }
    },
}
