"""Dead letters as people and programs read them."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich.markup import escape

from leasehold.cli.options import counted, printable
from leasehold.cli.tables import Column, FittedTable
from leasehold.core.model import Group
from leasehold.ports import DeadLetter

HEX_BYTES_MAX = 4096
HEX_BYTES = 16
INDENT = 15


def tables(letters: Sequence[DeadLetter]) -> list[FittedTable]:
    """A table per group, in the order in which the letters are given."""
    groups: dict[Group, list[DeadLetter]] = {}
    for letter in letters:
        groups.setdefault(letter.group, []).append(letter)
    return [_table(group, found) for group, found in groups.items()]


def _table(group: Group, letters: Sequence[DeadLetter]) -> FittedTable:
    names = ("id", "place", "died (UTC)", "redriven")
    table = FittedTable(
        *(Column(name=name, justify="left") for name in names),
        Column(name="error", justify="left", cut=True),
        title=escape(printable(str(group))),
    )
    for letter in letters:
        table.add_row(
            letter.id,
            escape(printable(f"{letter.partition}/{letter.sequence}")),
            _time(letter.dead_at)[:16],
            "no" if letter.redriven_at is None else "yes",
            escape(printable(letter.reason.split("\n")[0])),
        )
    return table


def page(letter: DeadLetter) -> str:
    """All of one letter."""
    kind, body = body_text(letter.body)
    key, offset = letter.partition_key, f" (offset {letter.token})" if letter.token else ""
    times = f", after {counted(letter.redrives, 'redrive')}" if letter.redrives else ""
    rows = {
        "id": letter.id,
        "group": str(letter.group),
        "partition": letter.partition,
        "sequence": f"{letter.sequence}{offset}",
        "partition key": "-" if key is None else key,
        "enqueued": _time(letter.enqueued_at) + " UTC",
        "died": f"{_time(letter.dead_at)} UTC, {counted(letter.attempts, 'attempt')}",
        "redriven": "no" if letter.redriven_at is None else _time(letter.redriven_at) + " UTC",
        "properties": json.dumps(dict(letter.properties)) if letter.properties else "-",
        "error": letter.error,
        "body": f"{counted(len(letter.body), 'byte')}, {kind}",
    }
    rows["redriven"] += times
    return "\n".join([*(_row(name, text) for name, text in rows.items()), body])


def _row(name: str, text: str) -> str:
    return f"{name:{INDENT}}" + f"\n{'':{INDENT}}".join(map(printable, text.split("\n")))


def body_text(body: bytes) -> tuple[str, str]:
    """What a body seems to be, and how it is best read."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "binary", _hex(body)
    try:
        parsed = json.loads(text, object_pairs_hook=_without_repeats)  # noqa: TID251
        return "JSON", _lines(json.dumps(parsed, indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        pass
    if all(each.isprintable() or each in "\n\r\t" for each in text):
        return "text", _lines(text)
    return "binary", _hex(body)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # What is wrong with an event may be just that, so it must not disappear.
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _lines(text: str) -> str:
    return "\n".join(printable(line.expandtabs()) for line in text.splitlines())


def _hex(body: bytes) -> str:
    lines = []
    for start in range(0, min(len(body), HEX_BYTES_MAX), HEX_BYTES):
        part = body[start : start + HEX_BYTES]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):{3 * HEX_BYTES}} {shown}")
    if len(body) > HEX_BYTES_MAX:
        lines.append(f"… {len(body) - HEX_BYTES_MAX:,} more bytes; --json has all of them")
    return "\n".join(lines)


def as_json(letter: DeadLetter, *, with_body: bool = False) -> dict[str, Any]:
    values: dict[str, Any] = {
        "id": letter.id,
        "namespace": letter.group.namespace,
        "feed": letter.group.feed,
        "group": letter.group.name,
        "partition": letter.partition,
        "sequence": letter.sequence,
        "offset": letter.token,
        "partition_key": letter.partition_key,
        "properties": dict(letter.properties),
        "enqueued_at": letter.enqueued_at.isoformat(),
        "dead_at": letter.dead_at and letter.dead_at.isoformat(),
        "redriven_at": letter.redriven_at and letter.redriven_at.isoformat(),
        "redrives": letter.redrives,
        "attempts": letter.attempts,
        "error": letter.reason,
        "body_bytes": len(letter.body),
    }
    if with_body:
        values["traceback"] = letter.error.removeprefix(letter.reason).lstrip("\n") or None
        try:
            values["body"] = letter.body.decode()
        except UnicodeDecodeError:
            values["body_base64"] = base64.b64encode(letter.body).decode()
    return values


def _time(time: datetime | None) -> str:
    return "-" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
