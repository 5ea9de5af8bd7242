"""Lines as events: from arguments, a file or standard input into a hub, in large steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rich.progress import BarColumn, TextColumn

from leasehold.cli.live_input import Interrupt, live_lines
from leasehold.cli.options import notes
from leasehold.cli.progress import bar
from leasehold.core import strict_json
from leasehold.errors import BadInput, LeaseholdError
from leasehold.ports import Sender

STEP_EVENTS = 20_000
TURN_EVENTS = 1000
"""Without a key, the next partition's turn comes after so many."""
STEP_BYTES = 16 << 20
STDIN = Path("-")


@dataclass(slots=True)
class SendTotals:
    events: int = 0
    up_to_line: int = 0
    partitions: dict[str, dict[str, int]] = field(default_factory=dict)


class Lines:
    """Bodies with their line numbers, and how far we are, for the progress bar."""

    def __init__(
        self,
        source: Sequence[str] | BinaryIO,
        total_bytes: int | None,
        longest: int,
        interrupt: Interrupt | None = None,
    ) -> None:
        self.number = 0
        self.bytes_done = 0
        self.total_bytes = total_bytes
        self._source, self._longest, self._interrupt = source, longest, interrupt

    def __iter__(self) -> Iterator[tuple[int, bytes] | None]:
        """None where the input pauses. Ends early on Ctrl-C: see ``interrupted``."""
        if isinstance(self._source, Sequence):
            # As the system gave them: an argument need not be UTF-8.
            yield from ((0, body.encode(errors="surrogateescape")) for body in self._source)
            return
        for line in self._raw(self._source):
            if line is None:
                yield None
                continue
            self.number += 1
            self.bytes_done += len(line)
            body = line.rstrip(b"\r\n")
            if len(body) > self._longest:
                raise BadInput(
                    f"line {self.number} has more than the {self._longest:,} bytes that this hub "
                    "takes (batch_bytes_max)"
                )
            if body:
                yield self.number, body

    def _raw(self, source: BinaryIO) -> Iterator[bytes | None]:
        if self._interrupt is not None:
            yield from live_lines(source.fileno(), self._longest, self._interrupt)
            return
        # Bounded, so that a file without line ends is an error and not a memory full of it.
        while line := source.readline(self._longest + 2):
            yield line

    @property
    def interrupted(self) -> bool:
        return self._interrupt is not None and self._interrupt.asked


@contextmanager
def lines_of(bodies: Sequence[str] | None, file: Path | None, longest: int) -> Iterator[Lines]:
    if bodies:
        yield Lines(bodies, None, longest)
    elif file is None or file == STDIN:
        if sys.stdin.isatty():
            notes.print("one event per line; end with Ctrl-D", highlight=False)
        with Interrupt() as interrupt:
            yield Lines(sys.stdin.buffer, None, longest, interrupt)
    else:
        try:
            opened = file.open("rb")
        except OSError as error:
            raise BadInput(f"{file} cannot be read: {error.strerror}") from error
        with opened:
            yield Lines(opened, file.stat().st_size, longest)


def send_lines(
    hub: Sender,
    lines: Lines,
    sent: SendTotals,
    *,
    key: str | None,
    key_field: str | None,
    partition: str | None,
) -> None:
    """Step by step, each step all or nothing; ``sent`` is true even when a step fails."""
    in_turn = key is None and key_field is None and partition is None
    columns = (
        TextColumn("sending"),
        BarColumn(),
        TextColumn("{task.fields[events]:,} events"),
    )
    with bar(*columns) as progress:
        task = progress.add_task("", total=lines.total_bytes, events=0)
        for numbers, bodies in _steps(lines, TURN_EVENTS if in_turn else STEP_EVENTS):
            keys = _keys(numbers, bodies, key, key_field)
            try:
                placed = hub.send_columns(keys, bodies, partition_id=partition)
            except LeaseholdError as error:
                where = f"lines {numbers[0]:,} to {numbers[-1]:,}: " if numbers[0] else ""
                raise type(error)(f"{where}{error}") from error
            for name, first_sequence, events in placed:
                place = {"first_sequence": first_sequence, "events": 0}
                sent.partitions.setdefault(name, place)["events"] += events
            sent.events += len(bodies)
            sent.up_to_line = numbers[-1]
            progress.update(task, completed=lines.bytes_done, events=sent.events)


def _steps(lines: Lines, step_events: int) -> Iterator[tuple[list[int], list[bytes]]]:
    numbers: list[int] = []
    bodies: list[bytes] = []
    total_bytes = 0
    for line in lines:
        if line is not None:
            numbers.append(line[0])
            bodies.append(line[1])
            total_bytes += len(line[1])
        full = len(bodies) >= step_events or total_bytes >= STEP_BYTES
        if full or (line is None and bodies):
            yield numbers, bodies
            numbers, bodies, total_bytes = [], [], 0
    if bodies:
        yield numbers, bodies
    if lines.interrupted:
        raise KeyboardInterrupt


def _keys(
    numbers: Sequence[int], bodies: Sequence[bytes], key: str | None, key_field: str | None
) -> list[str] | None:
    if key_field is None:
        return None if key is None else [key] * len(bodies)
    return [_key(number, body, key_field) for number, body in zip(numbers, bodies, strict=True)]


def _key(number: int, body: bytes, key_field: str) -> str:
    try:
        value = strict_json.loads(body)[key_field]
    except (ValueError, TypeError, LookupError):
        value = None
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)
    where = f"line {number:,}" if number else "an event"
    shown = body[:60].decode(errors="backslashreplace")
    raise BadInput(
        f"{where} is no JSON object with a text or a whole number as {key_field!r}: {shown!r}"
    )
