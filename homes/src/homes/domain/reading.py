"""A sensor reading as it is sent: a JSON body of about 110 bytes."""

from __future__ import annotations

import json
import re

HOME_ID = re.compile(r"H[0-9]{6}")
HOMES_MAX = 1_000_000
MINUTE_MS = 60_000
"""A reading has its time in milliseconds; aggregates are by minute."""


def home_id(number: int) -> str:
    return f"H{number:06d}"


def sensor_id(home: str, kind: str) -> str:
    return f"{home}-{kind}"


def body(home: str, kind: str, value: float, battery: int, ts_ms: int) -> bytes:
    """One reading; ``simulator.bodies`` makes the same of whole columns."""
    fields = {
        "home_id": home,
        "sensor_id": sensor_id(home, kind),
        "type": kind,
        "value": value,
        "battery": battery,
        "ts": ts_ms,
    }
    return json.dumps(fields, separators=(",", ":")).encode()
