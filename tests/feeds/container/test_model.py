"""A container against a plain model of it: random writes, splits and readers, in both modes."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.blocking import result_of

from leasehold.core.balance import missing
from leasehold.core.change import Change
from leasehold.core.model import Checkpoint, Group, Lease, Snapshot
from leasehold.errors import BadInput, DocumentConflict
from leasehold.feeds.container import Container
from leasehold.feeds.container.change_feed import ChangeFeed

KEYS = st.sampled_from([f"home-{number}" for number in range(9)])
IDS = st.sampled_from("abc")
VALUES = st.integers(0, 3)
GROUP = Group(namespace="n", feed="f", name="g")
Which = tuple[str, str]


class Reader:
    """A group that reads one mode of the feed by leases, as far as it has come."""

    def __init__(self, feed: ChangeFeed) -> None:
        self.feed = feed
        self.leases: dict[str, Checkpoint] = {}
        self.replaced: set[str] = set()
        self.changes: list[Change] = []

    def look(self) -> None:
        leases = tuple(
            Lease(group=GROUP, partition=p, checkpoint=c) for p, c in self.leases.items()
        )
        seen = Snapshot(leases=leases, replaced=frozenset(self.replaced))
        for partition in missing(seen, result_of(self.feed.partitions())):
            self.leases[partition] = self.feed.position_of(partition, "beginning")

    def step(self, max_events: int) -> bool:
        moved = False
        for partition, position in tuple(self.leases.items()):
            batch = self.feed.read_batch(partition, position, max_events)
            assert result_of(self.feed.remaining({partition: position}))[partition] >= len(
                batch.events
            )
            self.changes += batch.events
            self.leases[partition] = batch.next
            if batch.children:
                del self.leases[partition]
                self.replaced.add(partition)
                assert not self.leases.keys() & batch.children.keys()
                self.leases |= batch.children
            moved = moved or bool(batch.events) or bool(batch.children)
        return moved

    def drain(self) -> None:
        self.look()
        while self.step(5):
            pass
        assert not any(result_of(self.feed.remaining(self.leases)).values())


class Model(RuleBasedStateMachine):
    @initialize(ranges=st.integers(1, 3), limit=st.sampled_from([None, 3]))
    def begin(self, ranges: int, limit: int | None) -> None:
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "c.db"
        self.container = Container.create(
            self.path,
            name="alerts",
            namespace="homes",
            partition_key="/key",
            ranges=ranges,
            split_documents=limit,
        )
        self.documents: dict[Which, dict[str, Any]] = {}
        self.history: dict[Which, list[tuple[Any, ...]]] = defaultdict(list)
        self.readers: list[Reader] = []
        self.add_readers()

    @rule()
    def add_readers(self) -> None:
        """They may begin late, after splits, and must get what was before."""
        if len(self.readers) < 6:
            self.readers += [Reader(self.container.feed(mode)) for mode in ("latest", "all")]

    @rule(key=KEYS, id=IDS, value=VALUES)
    def upsert(self, key: str, id: str, value: int) -> None:
        new = {"id": id, "key": key, "value": value}
        self.wrote(self.container.upsert(new))

    @rule(keys=st.lists(st.tuples(KEYS, IDS), max_size=6), value=VALUES)
    def upsert_many(self, keys: list[Which], value: int) -> None:
        new = [{"id": id, "key": key, "value": value} for key, id in keys]
        for stored in self.container.upsert_many(new):
            self.wrote(stored)

    @rule(key=KEYS, id=IDS, value=VALUES)
    def insert(self, key: str, id: str, value: int) -> None:
        expected = "exists" if (key, id) in self.documents else "stored"
        try:
            stored = self.container.insert({"id": id, "key": key, "value": value})
        except DocumentConflict as conflict:
            outcome = conflict.reason
        else:
            outcome = "stored"
            self.wrote(stored)
        assert outcome == expected

    @rule(key=KEYS, id=IDS, value=VALUES, stale=st.booleans())
    def patch(self, key: str, id: str, value: int, stale: bool) -> None:
        old = self.documents.get((key, id))
        etag = "stale" if stale else old and old["_etag"]
        try:
            stored = self.container.patch(id, key, {"patch": value}, if_match=etag)
        except DocumentConflict as conflict:
            outcome = conflict.reason
        else:
            outcome = "stored"
            self.wrote(stored)
            assert stored == {**(old or {}), **stored, "patch": value}
        assert outcome == ("missing" if old is None else "changed" if stale else "stored")

    @rule(key=KEYS, id=IDS)
    def delete(self, key: str, id: str) -> None:
        old = self.documents.pop((key, id), None)
        assert self.container.delete(id, key) is (old is not None)
        if old is not None:
            self.history[key, id].append(("delete", None, old))

    @rule(chance=st.randoms(use_true_random=False))
    def split(self, chance: Any) -> None:
        leaves = [each for each in self.container.ranges() if not each.split]
        if len(leaves) == 12:
            return
        one = chance.choice(leaves)
        if one.low < one.high:
            self.container.split(one.id)
        else:
            with pytest.raises(BadInput, match="a single hash"):
                self.container.split(one.id)

    @rule(max_events=st.integers(1, 4), chance=st.randoms(use_true_random=False))
    def read_some(self, max_events: int, chance: Any) -> None:
        reader = chance.choice(self.readers)
        reader.look()
        reader.step(max_events)

    @rule()
    def open_again(self) -> None:
        self.container.close()
        self.container = Container.open(self.path)
        for reader in self.readers:
            reader.feed = self.container.feed(reader.feed.mode)

    @invariant()
    def ranges_cover_the_key_space_once_and_count_right(self) -> None:
        leaves = sorted(
            (each for each in self.container.ranges() if not each.split), key=lambda r: r.low
        )
        assert (leaves[0].low, leaves[-1].high) == (0, (1 << 32) - 1)
        for left, right in pairwise(leaves):
            assert right.low == left.high + 1
        counts = {each.id: each.documents for each in leaves if each.documents}
        wanted: dict[str, int] = defaultdict(int)
        for key, _ in self.documents:
            wanted[self.container.range_of(key)] += 1
        assert counts == wanted

    def wrote(self, stored: dict[str, Any]) -> None:
        which = (stored["key"], stored["id"])
        old = self.documents.get(which)
        self.documents[which] = stored
        self.history[which].append(("replace" if old else "insert", stored, old))

    def teardown(self) -> None:
        if not hasattr(self, "container"):
            return
        for key, id in self.history:
            assert self.container.read(id, key) == self.documents.get((key, id))
        for reader in self.readers:
            reader.drain()
            seen: dict[Which, list[Change]] = defaultdict(list)
            for change in reader.changes:
                document = change.document or change.previous
                assert document is not None
                assert change.partition_key == document["key"]
                seen[document["key"], document["id"]].append(change)
            for changes in seen.values():
                lsns = [change.lsn for change in changes]
                assert lsns == sorted(set(lsns))
            if reader.feed.mode == "all":
                assert {
                    which: [(c.operation, c.document, c.previous) for c in changes]
                    for which, changes in seen.items()
                } == self.history
            else:
                newest = {which: changes[-1].document for which, changes in seen.items()}
                assert {w: d for w, d in newest.items() if w in self.documents} == self.documents
                assert newest.keys() <= self.history.keys()
        self.container.close()
        self.folder.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=40)
