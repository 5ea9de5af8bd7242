"""What keeps a sink exact, whatever it stores its rows in.

A sink keeps a ``SinkMark`` for each partition of each writer, in the same commit as the rows. A
batch is compared with the marks before any work is done; the commit is made only if the marks are
still the same. So neither a crash between commit and checkpoint nor a zombie makes anything count
twice, whatever the lease store knows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import quote

from leasehold.core.model import Group
from leasehold.core.ranges import Range, there
from leasehold.errors import PositionGone, SinkUnavailable, StaleBatch
from leasehold.ports import SinkBatch, SinkMark

log = logging.getLogger("leasehold.sinks")
UNKNOWN = 0
"""The number of a feed's history that nobody knows."""
NEVER = SinkMark()


def writer_of(group: Group, identity: str) -> str:
    """Whose rows they are: a group of a feed, and not of another one that had the same name."""
    names = (group.namespace, group.feed, group.name, identity)
    return "/".join(quote(name, safe="") for name in names)


class Fence:
    """One for each opened sink. It remembers nothing: what a process knows of a partition may be of
    before a rewind, and so may what it does not know yet."""

    def __init__(self, url: str, options: str = "") -> None:
        """``options``: what else ``leasehold rewind --sink URL`` has to be told."""
        self._sink = f"{url}{options}"
        self._url = url

    def check(
        self,
        batch: SinkBatch,
        marks: Mapping[str, SinkMark],
        ranges: Sequence[Range] | None = None,
    ) -> dict[str, SinkMark]:
        """The marks that the commit has to write; none if the sink has all of it already. Refuses
        what it has in part.

        Call it with marks that were read just before, before the work, and again if they have
        changed when it is done: the marks to write are those of the first call, so that a feed that
        is rolled back meanwhile is noticed.
        ``ranges``: those of the batch that are still to be written; none: all.
        """
        ranges = batch.ranges if ranges is None else ranges
        stale: dict[str, int | SinkUnavailable | None] = {}
        behind_gaps: list[str] = []
        rolled_back = self._rolled_back(batch, marks)
        for each in ranges:
            mark = marks.get(each.partition, NEVER)
            if mark.rewind > 0:
                stale[each.partition] = SinkUnavailable(
                    f"a rewind of partition {each.partition} of {batch.group} in {self._url} is "
                    "not finished: run it again"
                )
            elif each.partition in rolled_back:
                stale[each.partition] = rolled_back[each.partition]
            elif mark.next_sequence > each.first:
                stale[each.partition] = mark.next_sequence
            elif mark.next_sequence < each.first and mark.rewind:
                behind_gaps.append(each.partition)
        # Dead letters leave gaps, and so would a batch of before the last rewind. A rewind moves
        # the lease before it writes the mark: if the lease is still the same, the batch came after.
        if behind_gaps:
            stale |= dict.fromkeys(set(behind_gaps) - batch.confirmed(behind_gaps), None)
        if stale:
            log.info("%s: %s is elsewhere: %s", batch.instance, self._url, stale)
            if there(ranges, stale) == list(ranges):
                batch.has_been_written()
                return {}
            raise StaleBatch(f"{self._url} has some already, or was rewound", stale)
        histories = batch.numbers_at_end()
        return {
            each.partition: replace(
                marks.get(each.partition, NEVER),
                next_sequence=each.end,
                history=histories.get(each.partition, UNKNOWN),
            )
            for each in ranges
        }

    def _rolled_back(
        self, batch: SinkBatch, marks: Mapping[str, SinkMark]
    ) -> dict[str, SinkUnavailable]:
        """Partitions whose new events would be taken for those that the sink has: they have the
        sequences of events that the feed has lost."""
        known = {}
        for each in batch.ranges:
            mark = marks.get(each.partition, NEVER)
            if mark.history != UNKNOWN:
                known[each.partition] = mark.next_sequence, mark.history
        lost = batch.lost_history(known)
        return {
            each.partition: self._behind(batch, each, lost[each.partition])
            for each in batch.ranges
            if each.partition in lost
        }

    def _behind(self, batch: SinkBatch, wanted: Range, gone: PositionGone) -> SinkUnavailable:
        at = min(wanted.first, gone.resume.next_sequence)
        return SinkUnavailable(
            f"{self._url} has partition {wanted.partition} of {batch.group} up to "
            f"{gone.position.next_sequence}, but the feed was rolled back and continues at {at}: "
            f"{gone}. None of it is written until the sink goes back, too: leasehold rewind "
            f"FEED --group {batch.group.name} --store STORE --partition {wanted.partition} "
            f"--to sequence:{at} --sink {self._sink}"
        )


def still_held(batch: SinkBatch) -> tuple[Range, ...]:
    """What of a batch to commit: ask right before each try. The rest is left out of the batch, for
    good, even if a renewal comes late. Raises ``StaleBatch`` if nothing is held any more. Events
    that do not decode are dead letters by then: after a crash behind the commit nobody would look
    at them."""
    batch.put_letters()
    lost = batch.lost()
    held = tuple(each for each in batch.ranges if each.partition not in lost)
    if not held:
        raise StaleBatch(f"the leases of {sorted(lost)} are lost", dict.fromkeys(lost, None))
    if lost:
        log.info("%s: the leases of %s are lost; the rest counts", batch.instance, sorted(lost))
        batch.leave_out(dict.fromkeys(lost, None))
    return held


def under_way(
    number: int, marks: Mapping[str, SinkMark], partitions: Iterable[str], what: str
) -> bool:
    """Whether the rewind of that number is still to be finished. False: it is finished, by a commit
    whose answer was lost; what was written since is not to be removed."""
    found = {marks.get(partition, NEVER).rewind for partition in partitions}
    if found == {-number}:
        return False
    if found != {number}:
        raise SinkUnavailable(f"another rewind of {what} came between: run this again")
    return True
