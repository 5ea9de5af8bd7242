"""Sending a group back together with the sink that it writes to.

Three steps, so that a crash between any two is noticed and mended by doing it again: mark the
partitions in the sink, which keeps every writer out; rewind the leases; remove the group's rows and
lower the sink's marks in one commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from leasehold.core.model import Group
from leasehold.core.start import AtSequence
from leasehold.errors import BadInput, PositionGone
from leasehold.operations.rewind import Move, RewindOutcome, carry_out, owners
from leasehold.ports import Feed, FeedHistory, LeaseStore, SinkMark, SinkRewind
from leasehold.sinks import UNKNOWN

NEVER = SinkMark()


class RewindWithSink:
    def __init__(self, sink: SinkRewind, group: Group, history: FeedHistory | None = None) -> None:
        """``history``: of the feed, to notice that it was rolled back."""
        self._sink, self._group, self._history = sink, group, history

    async def plan(
        self, feed: Feed, store: LeaseStore, moves: Sequence[Move]
    ) -> tuple[tuple[Move, ...], dict[str, int]]:
        """The moves as far as the sink allows them, and by partition where its rows will end.

        ``moves`` are those of all chosen partitions: a group may be there already, and its sink
        not. Partitions that an earlier rewind left marked are among them, wherever they are now.
        """
        leases = {each.partition: each for each in (await store.snapshot(self._group)).leases}
        marks = self._sink.marks()
        moves = [move for move in moves if _moves(marks.get(move.partition, NEVER), move)]
        wanted = {move.partition: move.to.next_sequence for move in moves}
        ends = {}
        for partition, lease in leases.items():
            if marks.get(partition, NEVER).rewind > 0:
                ends[partition] = wanted.get(partition, lease.checkpoint.next_sequence)
            elif partition in wanted and partition in marks:
                ends[partition] = wanted[partition]
        ends = dict(self._sink.begin_at(self._kept(marks, ends)))
        found = [await _moved(feed, move, ends) for move in moves]
        for partition, at in ends.items():
            lease = leases[partition]
            if partition not in wanted and at < lease.checkpoint.next_sequence:
                stays = Move(lease=lease, to=lease.checkpoint, again=0, skipped=0)
                found.append(await _moved(feed, stays, ends))
        return tuple(found), ends

    def rows_after(self, ends: Mapping[str, int]) -> int:
        """How many rows would be removed."""
        return self._sink.rows_after(ends)

    async def carry_out(
        self, store: LeaseStore, moves: Sequence[Move], ends: Mapping[str, int], *, fence: bool
    ) -> tuple[RewindOutcome, int]:
        """What was planned: leases and sink together. Also how many rows were removed."""
        if not fence and owners(moves):
            return await carry_out(store, moves), 0  # it refuses, before anything is marked
        self._sink.begin(list(ends))
        outcome = await carry_out(store, moves, fence=fence)
        stay = [partition for partition in ends if partition in outcome.refused]
        histories = {move.partition: self._number_at(move) for move in moves}
        removed = self._sink.finish({p: at for p, at in ends.items() if p not in stay}, histories)
        self._sink.cancel(stay)
        return outcome, removed

    def _number_at(self, move: Move) -> int:
        return UNKNOWN if self._history is None else self._history.number_at(move.to)

    def _kept(self, marks: Mapping[str, SinkMark], ends: Mapping[str, int]) -> dict[str, int]:
        """At most as far on as the feed still has what the sink has. Further on, new events have
        the sequences of lost ones, and would never get into the sink."""
        known = {
            partition: (marks[partition].next_sequence, marks[partition].history)
            for partition in ends
            if marks[partition].history != UNKNOWN
        }
        lost = {} if self._history is None else self._history.lost(known)
        places = {p: max(g.resume.next_sequence, g.earliest.next_sequence) for p, g in lost.items()}
        return {partition: min(at, places.get(partition, at)) for partition, at in ends.items()}


def _moves(mark: SinkMark, move: Move) -> bool:
    """Whether there is anything to do: the group may be there already, and the sink not."""
    ahead = mark.next_sequence > move.to.next_sequence
    return ahead or mark.rewind > 0 or move.to != move.lease.checkpoint


async def _moved(feed: Feed, move: Move, ends: Mapping[str, int]) -> Move:
    wanted = move.to.next_sequence
    at = ends.get(move.partition, wanted)
    if at == wanted:
        return move
    try:
        to = await feed.locate(move.partition, AtSequence(at))
    except PositionGone as gone:
        raise BadInput(
            f"{gone}\nRows of the sink were computed from events from {at} on, which are no longer "
            "kept, so the rows could not be computed again. Nothing was changed."
        ) from gone
    return replace(move, to=to, again=move.again + wanted - at)
