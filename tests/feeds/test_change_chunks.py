from datetime import UTC, datetime

import pytest

from leasehold.core.change import Change
from leasehold.core.model import Checkpoint
from leasehold.core.ranges import Range
from leasehold.feeds import change_chunks
from leasehold.feeds.change_chunks import chunks
from leasehold.ports import Batch

AT = datetime(2026, 1, 1, tzinfo=UTC)
LSNS = [2, 4, 4, 4, 4, 5, 7, 7, 9]


def read(partition, at, most):
    """As a feed whose transactions share an LSN: a token says how much of one is done."""
    lsn, done = (int(part) for part in at.token.split(".")) if at.token else (at.next_sequence, 0)
    left = [(n, place) for n, place in placed() if n > lsn or (n == lsn and place > done)]
    if not at.token:
        left = [(n, place) for n, place in placed() if n >= lsn]
    found = [
        Change({"id": f"{n}.{place}"}, "upsert", n, f"{n}.{place}", AT, partition, None)
        for n, place in left[:most]
    ]
    if not found:
        return Batch(next=at)
    return Batch(
        events=found, next=Checkpoint(next_sequence=found[-1].lsn + 1, token=found[-1].offset)
    )


def placed():
    return [(lsn, LSNS[: place + 1].count(lsn)) for place, lsn in enumerate(LSNS)]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(("first", "end"), [(0, 10), (2, 5), (4, 5), (5, 8), (3, 4), (7, 7)])
def test_a_range_has_all_changes_of_its_lsns_however_they_are_read(monkeypatch, size, first, end):
    monkeypatch.setattr(change_chunks, "CHUNK_CHANGES", size)
    wanted = Range(partition="0", first=first, end=end)
    found = [change for chunk in chunks(read, wanted) for change in chunk.changes]
    assert [change.offset for change in found] == [
        f"{lsn}.{place}" for lsn, place in placed() if first <= lsn < end
    ]


def test_a_transaction_is_not_read_change_by_change(monkeypatch):
    monkeypatch.setitem(globals(), "LSNS", [4] * 100 + [5])
    asked = []

    def counted(partition, at, most):
        asked.append(at)
        return read(partition, at, most)

    wanted = Range(partition="0", first=4, end=5)
    found = [change for chunk in chunks(counted, wanted) for change in chunk.changes]
    assert len(found) == 100
    assert len(asked) == 1
