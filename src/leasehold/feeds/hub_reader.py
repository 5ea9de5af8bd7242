"""Reads a hub's partitions, and finds positions in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from leasehold.core.model import Checkpoint
from leasehold.core.start import AtOffset, AtSequence, AtTime, Earliest, Latest, parse
from leasehold.errors import BadInput, PositionGone
from leasehold.feeds.arrow_events import EVENT_SCHEMA, to_unix_us
from leasehold.feeds.hub_batches import assemble, decode
from leasehold.feeds.hub_file import HubFile, Place, State

READ_BYTES_MAX = 64 << 20
NO_TOKEN = ("", "-1")
Gone = Literal["retention", "beyond end", "other feed"]
# Not from a list: that would import pandas, where it is installed.
NO_EVENTS = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in EVENT_SCHEMA], schema=EVENT_SCHEMA
)


class HubReader:
    def __init__(self, file: HubFile) -> None:
        self._file = file
        self._partly_read: dict[int, tuple[int, Any]] = {}
        """By partition: the decoded row that the last read ended in, for the next read."""

    def number(self, partition: str | int) -> int:
        """A partition id as the file knows it. Whether it exists is found out on use."""
        text = str(partition)
        if not (text.isascii() and text.isdigit() and str(int(text)) == text):
            raise self._unknown(partition)
        return int(text)

    def read(
        self,
        partition: int,
        position: Checkpoint,
        max_events: int,
        max_bytes: int = READ_BYTES_MAX,
    ) -> tuple[pa.RecordBatch, Checkpoint]:
        """Events from the position on, as columns, and where to continue after them."""
        if max_events < 1:
            raise BadInput(f"max_events is {max_events}; at least 1 event must be allowed")
        sequence = position.next_sequence
        if sequence < 0:
            raise BadInput(f"partition {partition}: sequence {sequence}; the first one is 0")
        known, known_batch = self._partly_read.get(partition, (-1, None))
        rows, state = self._file.read(partition, sequence, known, max_events, max_bytes)
        if not rows:
            return self._nothing(partition, position, state)
        decoded = iter(decode([row for row in rows if row.data is not None]))
        stored = [known_batch if row.data is None else next(decoded) for row in rows]
        arrow = assemble(rows, stored, sequence, max_events)
        end = sequence + arrow.num_rows
        if end <= rows[-1].last_sequence and 2 * rows[-1].message_bytes > sum(
            row.message_bytes for row in rows
        ):
            # Only where it is most of what was decoded: its buffer keeps all the rest alive.
            self._partly_read[partition] = (rows[-1].first_sequence, stored[-1])
        else:
            self._partly_read.pop(partition, None)
        before = arrow.column(2)[0].as_py() - len(arrow.column(0)[0].as_py()) - 1
        self._require_token(partition, position, before)
        token = str(arrow.column(2)[arrow.num_rows - 1].as_py())
        return arrow, Checkpoint(next_sequence=end, token=token)

    def locate(self, partition: int, start: Any) -> Checkpoint:
        """The position that a start setting means right now."""
        try:
            wanted = parse(start)
        except ValueError as error:
            raise BadInput(str(error)) from error
        state = self.state(partition)
        match wanted:
            case Earliest():
                return earliest(state)
            case Latest():
                return latest(state)
            case AtSequence(sequence=sequence):
                return self._at(state, sequence)
            case AtOffset(offset=offset):
                return self._at_offset(state, offset)
            case AtTime(time=time):
                us = to_unix_us(time)
                row = self._file.first_row(partition, lambda *row: row[3] >= us)
                return self._at(state, row[0]) if row else latest(state)

    def event_times(self, positions: Mapping[int, Checkpoint]) -> dict[int, float | PositionGone]:
        """When the events at these positions were enqueued, without decoding any."""
        times: dict[int, float | PositionGone] = {}
        sequences = {p: position.next_sequence for p, position in positions.items()}
        for partition, (state, place) in self._file.places(sequences).items():
            if state is None:
                raise self._unknown(partition)
            if reason := _why_gone(positions[partition], state, place):
                times[partition] = self._gone(state, positions[partition], reason)
            elif place is not None:
                times[partition] = place.enqueued_us / 1e6
        return times

    def state(self, partition: int) -> State:
        state = self._file.state(partition)
        if state is None:
            raise self._unknown(partition)
        return state

    def _at(self, state: State, sequence: int) -> Checkpoint:
        position = Checkpoint(next_sequence=sequence)
        if sequence == state.next_sequence:
            return latest(state)
        arrow, after = self.read(state.partition, position, 1)
        if not arrow.num_rows:
            return after
        before = int(after.token) - len(arrow.column(0)[0].as_py()) - 1
        return Checkpoint(next_sequence=sequence, token=str(before))

    def _at_offset(self, state: State, offset: str) -> Checkpoint:
        if not (offset.isascii() and offset.isdigit()):
            raise BadInput(f"offset {offset!r}: this hub's offsets are whole numbers")
        wanted = int(offset)
        position = Checkpoint(next_sequence=-1, token=offset)
        if wanted <= state.first_offset:
            raise self._gone(state, position, "retention")
        if wanted > state.last_offset:
            raise self._gone(state, position, "beyond end")
        row = self._file.first_row(state.partition, lambda *row: row[2] >= wanted)
        if row is None:
            raise self._gone(self.state(state.partition), position, "retention")
        first, last = row
        arrow, _ = self.read(state.partition, Checkpoint(next_sequence=first), last - first + 1)
        place = int(np.searchsorted(arrow.column(2).to_numpy(), wanted))
        return self._at(state, first + place)

    def _nothing(
        self, partition: int, position: Checkpoint, state: State | None
    ) -> tuple[pa.RecordBatch, Checkpoint]:
        if state is None:
            raise self._unknown(partition)
        if position.next_sequence < state.first_sequence:
            raise self._gone(state, position, "retention")
        if position.next_sequence > state.next_sequence:
            raise self._gone(state, position, "beyond end")
        self._require_token(partition, position, state.last_offset)
        return NO_EVENTS, latest(state)

    def _require_token(self, partition: int, position: Checkpoint, offset: int) -> None:
        """The offset before the position tells whether it was this hub that the position is of."""
        if position.token not in NO_TOKEN and position.token != str(offset):
            raise self._gone(self.state(partition), position, "other feed")

    def _gone(
        self,
        state: State,
        position: Checkpoint,
        reason: Gone,
    ) -> PositionGone:
        where = (
            f"sequence {position.next_sequence}"
            if position.next_sequence >= 0
            else f"offset {position.token}"
        )
        kept = (
            f"it keeps sequences {state.first_sequence} to {state.next_sequence - 1}"
            if state.next_sequence > state.first_sequence
            else f"it is empty; the next sequence is {state.next_sequence}"
        )
        text = {
            "retention": f"{where} is older than what the hub keeps: {kept}",
            "beyond end": f"{where} is beyond the end ({kept}); was the hub made anew?",
            "other feed": f"{where} with offset {position.token} is a position of another hub; "
            f"this one was made anew ({kept})",
        }[reason]
        return PositionGone(
            f"{self._file.path}, partition {state.partition}: {text}",
            partition=str(state.partition),
            position=position,
            reason=reason,
            earliest=earliest(state),
            latest=latest(state),
        )

    def _unknown(self, partition: str | int) -> BadInput:
        last = self._file.count_partitions() - 1
        return BadInput(
            f"partition {partition!r} is unknown: the hub {self._file.path} has 0 to {last}"
        )


def _why_gone(position: Checkpoint, state: State, place: Place | None) -> Gone | None:
    sequence = position.next_sequence
    if sequence < state.first_sequence:
        return "retention"
    if sequence > state.next_sequence:
        return "beyond end"
    if position.token in NO_TOKEN:
        return None
    # Every event moves the offset on by at least one. Where within its row an offset lies exactly
    # is not known without decoding; but hubs begin at offsets far apart, so the bounds will do.
    low = high = state.last_offset
    if place is not None:
        low = place.first_offset + sequence - place.first_sequence
        high = place.last_offset - (place.last_sequence - sequence) - 1
        high = low if sequence == place.first_sequence else high
    known = position.token.isascii() and position.token.isdigit()
    return None if known and low <= int(position.token) <= high else "other feed"


def earliest(state: State) -> Checkpoint:
    return Checkpoint(next_sequence=state.first_sequence, token=str(state.first_offset))


def latest(state: State) -> Checkpoint:
    return Checkpoint(next_sequence=state.next_sequence, token=str(state.last_offset))
