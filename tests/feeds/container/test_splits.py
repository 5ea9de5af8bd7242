import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.errors import BadInput
from leasehold.feeds.container import Container, RangeProperties
from leasehold.feeds.container import writing as container_writing
from leasehold.feeds.container.documents import hash_of
from leasehold.feeds.container.ranges import Layout


def make(path: Path, **settings: Any) -> Container:
    made = {"name": "alerts", "namespace": "homes", "partition_key": "/key", "ranges": 1}
    return Container.create(path, **made | settings)


def leaves(container: Container) -> list[RangeProperties]:
    return [each for each in container.ranges() if not each.split]


def fill(container: Container, count: int, key: str = "k{}") -> None:
    container.upsert_many({"id": str(n), "key": key.format(n)} for n in range(count))


@given(
    lows=st.sets(st.integers(1, 1000), max_size=8).map(lambda found: [0, *sorted(found)]),
    hash=st.integers(0, 1200),
)
def test_a_hash_belongs_to_the_last_range_that_begins_before_it(lows: list[int], hash: int) -> None:
    layout = Layout(1, lows, range(len(lows)))
    place = layout.leaf(hash)
    assert lows[place] <= hash
    assert place == len(lows) - 1 or hash < lows[place + 1]


def test_a_new_container_has_equal_ranges_over_all_hashes(tmp_path: Path) -> None:
    with make(tmp_path / "c.db", ranges=3) as container:
        ranges = container.ranges()
        assert [each.id for each in ranges] == ["0", "1", "2"]
        assert (ranges[0].low, ranges[-1].high) == (0, (1 << 32) - 1)
        assert [b.low - a.high for a, b in pairwise(ranges)] == [1, 1]
        assert {(each.high - each.low) // 1000 for each in ranges} == {(1 << 32) // 3000}
        assert {each.parent for each in ranges} == {None}


def test_a_split_halves_the_documents_and_keeps_ids_parents_and_bounds(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        fill(container, 101)
        assert container.split("0") == ("1", "2")
        parent, left, right = container.ranges()
        assert (parent.split, left.split, right.split) == (True, False, False)
        assert (left.parent, right.parent) == ("0", "0")
        assert (left.low, left.high + 1, right.high) == (parent.low, right.low, parent.high)
        assert {left.documents, right.documents} == {50, 51}
        for n in range(101):
            expected = left if hash_of(f"k{n}") <= left.high else right
            assert container.range_of(f"k{n}") == expected.id
            assert container.read(str(n), f"k{n}") is not None


def test_a_split_rewrites_no_document(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        container.upsert_many({"id": str(n), "key": f"k{n}", "x": "x" * 500} for n in range(2000))
        written: list[str] = []
        with container._file._connections.writing() as db:
            db.set_trace_callback(written.append)
        before = container.properties().next_lsn
        container.split("0")
        assert container.properties().next_lsn == before
        changed = re.findall(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\w+)", " ".join(written))
        assert changed == ["ranges", "ranges", "ranges", "head"]


def test_a_split_at_a_given_hash_is_made_there(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        fill(container, 50)
        at = 1 << 30
        left, right = container.split("0", at=at)
        found = {each.id: each for each in leaves(container)}
        assert (found[left].high, found[right].low) == (at - 1, at)
        low = sum(hash_of(f"k{n}") < at for n in range(50))
        assert (found[left].documents, found[right].documents) == (low, 50 - low)


@pytest.mark.parametrize("at", [0, -1, 1 << 32, 1 << 60])
def test_a_split_outside_of_the_bounds_is_refused(tmp_path: Path, at: int) -> None:
    with make(tmp_path / "c.db") as container:
        with pytest.raises(BadInput, match="cannot be split at"):
            container.split("0", at=at)
        assert len(container.ranges()) == 1


def test_a_range_is_split_once_only(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        container.split("0")
        with pytest.raises(BadInput, match="split already"):
            container.split("0")
        with pytest.raises(BadInput, match="split already"):
            container.split("0", at=5)
        assert len(container.ranges()) == 3


def test_a_range_of_a_single_hash_cannot_be_split(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        left, _ = container.split("0", at=1)
        with pytest.raises(BadInput, match="single hash"):
            container.split(left)


def test_an_empty_range_is_split_in_the_middle_of_its_keys(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        container.split("0")
        assert [each.low for each in leaves(container)] == [0, 1 << 31]


def test_a_full_range_splits_by_itself(tmp_path: Path) -> None:
    with make(tmp_path / "c.db", split_documents=10) as container:
        for n in range(100):
            container.insert({"id": str(n), "key": f"k{n}"})
            assert max(each.documents for each in leaves(container)) <= 10
        assert sum(each.documents for each in leaves(container)) == 100
        assert len(leaves(container)) > 10
        for n in range(100):
            assert container.read(str(n), f"k{n}") is not None


def test_a_large_batch_splits_as_often_as_it_takes(tmp_path: Path) -> None:
    with make(tmp_path / "c.db", split_documents=10) as container:
        fill(container, 200)
        assert max(each.documents for each in leaves(container)) <= 10
        found = [
            change.document["id"]
            for each in leaves(container)
            for change in container.changes(each.id, max_items=1000).changes
            if change.document
        ]
        assert sorted(found, key=int) == [str(n) for n in range(200)]


def test_updates_and_deletes_do_not_split(tmp_path: Path) -> None:
    with make(tmp_path / "c.db", split_documents=10) as container:
        for _ in range(3):
            fill(container, 10)
        for n in range(10):
            container.delete(str(n), f"k{n}")
        fill(container, 10)
        assert len(container.ranges()) == 1


def test_a_single_key_is_never_torn_apart_and_not_tried_at_every_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []
    even_cut = container_writing.even_cut
    monkeypatch.setattr(
        container_writing, "even_cut", lambda *args: (tries.append(1), even_cut(*args))[1]
    )
    with make(tmp_path / "c.db", split_documents=10) as container:
        for n in range(100):
            container.insert({"id": str(n), "key": "hot"})
        assert len(container.ranges()) == 1
        assert len(tries) == 4
        fill(container, 150, key="cold{}")
        assert len(leaves(container)) > 1
        hot = container.range_of("hot")
        assert next(each.documents for each in leaves(container) if each.id == hot) >= 100


def test_a_hot_key_goes_to_the_emptier_side(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        container.upsert_many({"id": str(n), "key": "hot"} for n in range(50))
        lower = [f"k{n}" for n in range(500) if hash_of(f"k{n}") < hash_of("hot")][:30]
        container.upsert_many({"id": "x", "key": key} for key in lower)
        container.split("0")
        assert sorted(each.documents for each in leaves(container)) == [30, 50]


def test_splits_by_one_process_are_seen_by_another(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container, Container.open(container.path) as other:
        fill(other, 20)
        left, right = container.split("0")
        other.insert({"id": "new", "key": "k1"})
        assert container.range_of("k1") in (left, right)
        counts = {each.id: each.documents for each in container.ranges()}
        assert counts[left] + counts[right] == 21
        feed = container.feed()
        end = feed.read_batch("0", feed.position_of("0", "latest"), 10).children
        fresh = [e for child, at in end.items() for e in feed.read_batch(child, at, 10).events]
        assert [change.document["id"] for change in fresh] == ["new"]
