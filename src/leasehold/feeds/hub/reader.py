"""Reads a hub's partitions, and finds positions in them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa

from leasehold.core.model import Checkpoint
from leasehold.core.start import (
    NO_STOCK_LEASES,
    NOTHING_COMMITTED,
    AtOffset,
    AtSequence,
    AtTime,
    Committed,
    Earliest,
    Latest,
    StockLeases,
    parse,
)
from leasehold.errors import BadInput, Gone, PositionGone
from leasehold.feeds.arrow_events import EVENT_SCHEMA, to_unix_us
from leasehold.feeds.hub.batches import BatchRow, assemble, decode
from leasehold.feeds.hub.file import HubFile, RowPlace, State
from leasehold.feeds.hub.offsets import MARK_BITS, generation_of, number_of
from leasehold.local.sqlite import Mark

READ_BYTES_MAX = 64 << 20
NO_TOKEN = ("", "-1")
# Not from a list: that would import pandas, where it is installed.
NO_EVENTS = pa.RecordBatch.from_arrays(
    [pa.nulls(0, field.type) for field in EVENT_SCHEMA], schema=EVENT_SCHEMA
)


class HubReader:
    def __init__(self, file: HubFile) -> None:
        self._file = file
        self._ends: tuple[Mark | None, dict[str, Checkpoint]] = (None, {})
        """As last seen."""
        self._partly_read: dict[int, tuple[int, Any]] = {}
        """By partition: the row that the last read ended in, by its last offset and decoded, for
        the next read."""

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
            self._partly_read[partition] = (rows[-1].last_offset, stored[-1])
        else:
            self._partly_read.pop(partition, None)
        self._require_token(partition, position, _offset_before(rows[0], arrow))
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
                row = self._file.first_row(partition, lambda row: row.enqueued_us >= us)
                return self._at(state, row.first_sequence) if row else latest(state)
            case StockLeases():
                raise BadInput(NO_STOCK_LEASES)
            case Committed(group=group):
                raise BadInput(NOTHING_COMMITTED.format(group=group))

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

    def ends(self) -> Mapping[str, Checkpoint]:
        """The same object as before, while nothing was written."""
        mark, known = self._ends
        now, states = self._file.states_since(mark)
        if states is not None:
            known = {str(state.partition): latest(state) for state in states}
            self._ends = now, known
        return known

    def tokens(self, sequences: Mapping[int, int]) -> dict[int, str]:
        found = {}
        for partition, (state, place) in self._file.places(sequences).items():
            sequence = sequences[partition]
            if state is None:
                raise self._unknown(partition)
            if place is None and sequence == state.next_sequence:
                found[partition] = latest(state).token
            elif place is not None:
                low, high = _bounds(place, sequence)
                # In mid-row of format 1, only decoding would tell.
                found[partition] = str(low) if low == high else ""
        return found

    def state(self, partition: int) -> State:
        state = self._file.state(partition)
        if state is None:
            raise self._unknown(partition)
        return state

    def _at(self, state: State, sequence: int) -> Checkpoint:
        _, place = self._file.places({state.partition: sequence})[state.partition]
        if place is not None and not place.counts_bytes:
            return Checkpoint(next_sequence=sequence, token=str(_offset_at(place, sequence - 1)))
        # Where there was nothing, there may be something by now: only its row says how it counts.
        rows, now = self._file.read(state.partition, sequence, -1, 1, READ_BYTES_MAX)
        if not rows:
            _, end = self._nothing(state.partition, Checkpoint(next_sequence=sequence), now)
            return end
        arrow = assemble(rows, list(decode(rows)), sequence, 1)
        return Checkpoint(next_sequence=sequence, token=str(_offset_before(rows[0], arrow)))

    def _at_offset(self, state: State, offset: str) -> Checkpoint:
        wanted = number_of(offset)
        if wanted is None:
            raise BadInput(f"offset {offset!r}: this hub's offsets are whole numbers")
        position = Checkpoint(next_sequence=-1, token=offset)
        if wanted <= state.first_offset:
            raise self._gone(state, position, "retention")
        if wanted > state.last_offset:
            raise self._gone(state, position, "beyond end")
        row = self._file.first_row(state.partition, lambda row: row.last_offset >= wanted)
        if row is None:
            raise self._gone(self.state(state.partition), position, "retention")
        first, last = row.first_sequence, row.last_sequence
        arrow, _ = self.read(state.partition, Checkpoint(next_sequence=first), last - first + 1)
        place = int(np.searchsorted(arrow.column(2).to_numpy(), wanted))
        return self._at(state, first + place)

    def _shared(self, state: State, position: Checkpoint) -> Checkpoint | None:
        """Where the generation that the position is of ends in this file, if it has it."""
        offset = number_of(position.token)
        if offset is None or position.next_sequence < 0:
            return None
        lost = generation_of(position.next_sequence - 1, offset)
        later = self._file.first_row(state.partition, lambda row: _lead(row) > lost.lead)
        end = latest(state) if later is None else _begin(later)
        known = generation_of(end.next_sequence - 1, int(end.token)) == lost
        return end if known and end.next_sequence <= position.next_sequence else None

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
        """The offset before the position tells whether it is one of this hub, as it is now."""
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
        shared = None if reason == "retention" else self._shared(state, position)
        if shared is not None and reason == "other feed":
            reason = "rolled back"
        text = {
            "retention": f"{where} is older than what the hub keeps: {kept}",
            "beyond end": f"{where} is beyond the end ({kept}); was the hub recreated, or an older "
            "copy restored?",
            "other feed": f"{where} with offset {position.token} is a position of another hub, or "
            f"of a later state of this one; it was recreated, or an older copy restored ({kept})",
            "rolled back": f"{where} with offset {position.token} lies in events that this hub has "
            f"lost: an older copy was restored, or power failed ({kept})",
        }[reason]
        if shared is not None:
            text += f"; up to sequence {shared.next_sequence} it is what it was"
        return PositionGone(
            f"{self._file.path}, partition {state.partition}: {text}",
            partition=str(state.partition),
            position=position,
            reason=reason,
            earliest=earliest(state),
            latest=latest(state),
            shared=shared,
        )

    def _unknown(self, partition: str | int) -> BadInput:
        last = self._file.count_partitions() - 1
        return BadInput(
            f"partition {partition!r} is unknown: the hub {self._file.path} has 0 to {last}"
        )


def _why_gone(position: Checkpoint, state: State, place: RowPlace | None) -> Gone | None:
    sequence = position.next_sequence
    if sequence < state.first_sequence:
        return "retention"
    if sequence > state.next_sequence:
        return "beyond end"
    if position.token in NO_TOKEN:
        return None
    low = high = state.last_offset
    if place is not None:
        low, high = _bounds(place, sequence)
    offset = number_of(position.token)
    return None if offset is not None and low <= offset <= high else "other feed"


def _bounds(place: RowPlace, sequence: int) -> tuple[int, int]:
    """Between which two the offset before a sequence lies. In a row of format 1 only decoding would
    tell; but hubs begin at offsets far apart, so that will do."""
    if not place.counts_bytes or sequence == place.first_sequence:
        offset = _offset_at(place, sequence - 1)
        return offset, offset
    return (
        place.first_offset + sequence - place.first_sequence,
        place.last_offset - (place.last_sequence - sequence) - 1,
    )


def _offset_before(row: BatchRow, arrow: pa.RecordBatch) -> int:
    """Of the event before the first one in ``arrow``, which lies in the row."""
    sequence = int(arrow.column(1)[0].as_py())
    if row.counts_bytes and sequence > row.first_sequence:
        return int(arrow.column(2)[0].as_py()) - len(arrow.column(0)[0].as_py()) - 1
    return _offset_at(row, sequence - 1)


def _offset_at(row: BatchRow | RowPlace, sequence: int) -> int:
    """Of an event in the row, or of the one before it."""
    if sequence < row.first_sequence:
        return row.first_offset
    return row.last_offset - ((row.last_sequence - sequence) << MARK_BITS)


def _lead(row: RowPlace) -> float:
    return -inf if row.counts_bytes else generation_of(row.last_sequence, row.last_offset).lead


def _begin(row: RowPlace) -> Checkpoint:
    return Checkpoint(next_sequence=row.first_sequence, token=str(row.first_offset))


def earliest(state: State) -> Checkpoint:
    return Checkpoint(next_sequence=state.first_sequence, token=str(state.first_offset))


def latest(state: State) -> Checkpoint:
    return Checkpoint(next_sequence=state.next_sequence, token=str(state.last_offset))
