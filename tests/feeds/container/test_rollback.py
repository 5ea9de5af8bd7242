"""A container that has lost its newest changes, because an older copy was restored."""

import shutil
import sqlite3
from contextlib import closing
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.blocking import result_of
from support.clocks import FakeClocks

from leasehold.core.model import Checkpoint
from leasehold.errors import DocumentConflict, PositionGone
from leasehold.feeds.container import Container
from leasehold.feeds.container.change_feed import ChangeFeed

DAY_S = 86_400.0


def make(path: Path, **settings: Any) -> Container:
    wanted = {"name": "c", "namespace": "n", "partition_key": "/key", "ranges": 1} | settings
    return Container.create(path, **wanted)


def put(container: Container, *ids: str) -> None:
    container.upsert_many([{"id": id, "key": "k"} for id in ids])


def read(feed: ChangeFeed, position: Checkpoint) -> list[str]:
    return [change.document["id"] for change in feed.read_batch("0", position, 1000).events]


def gone(feed: ChangeFeed, position: Checkpoint) -> PositionGone:
    with pytest.raises(PositionGone) as caught:
        feed.read_batch("0", position, 10)
    told = result_of(feed.event_times({"0": position}))["0"]
    assert isinstance(told, PositionGone)
    assert (told.reason, told.shared) == (caught.value.reason, caught.value.shared)
    return caught.value


def copy(path: Path, to: Path) -> None:
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(to)) as copied:
        db.backup(copied)


def restore(copied: Path, path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(copied, path)


@pytest.mark.parametrize("mode", ["latest", "all"])
def test_a_reader_beyond_what_was_lost_is_told_so_also_after_more_was_written(
    tmp_path: Path, mode: Any
) -> None:
    path, saved = tmp_path / "c.db", tmp_path / "saved.db"
    with make(path) as container:
        put(container, *"abcde")
        copy(path, saved)
        put(container, *"fghij")
        checkpoint = container.feed(mode).position_of("0", "latest")
        page = container.changes("0", mode=mode)
        lost = container.read("j", "k")["_etag"]
    restore(saved, path)
    with Container.open(path) as container:
        feed = container.feed(mode)
        assert gone(feed, checkpoint).reason == "beyond end"
        assert read(feed, gone(feed, checkpoint).resume) == []
        put(container, *"0123456789")
        told = gone(feed, checkpoint)
        assert (told.reason, told.shared.next_sequence) == ("rolled back", 6)
        assert result_of(feed.remaining({"0": checkpoint})) == {"0": 10}
        assert read(feed, told.resume) == list("0123456789")
        with pytest.raises(PositionGone):
            container.changes("0", page.continuation, mode=mode)
        with pytest.raises(PositionGone):
            feed.position_of("0", f"offset:{checkpoint.token}")
        put(container, "j")
        with pytest.raises(DocumentConflict):  # although it may have got the same LSN
            container.replace({"id": "j", "key": "k"}, if_match=lost)


def test_where_the_histories_part_is_not_known_everything_comes_again(tmp_path: Path) -> None:
    path, saved = tmp_path / "c.db", tmp_path / "saved.db"
    with make(path) as container:
        put(container, *"abcde")
        copy(path, saved)
    with Container.open(path) as container:
        put(container, *"fghij")
        checkpoint = container.feed().position_of("0", "latest")
    restore(saved, path)
    with Container.open(path) as container:
        put(container, *"0123456789")
        told = gone(container.feed(), checkpoint)
        assert (told.reason, told.shared) == ("rolled back", None)
        assert read(container.feed(), told.resume) == list("abcde0123456789")


def test_a_writer_notices_that_its_file_went_back_under_it(tmp_path: Path) -> None:
    path, saved = tmp_path / "c.db", tmp_path / "saved.db"
    with make(path) as container:
        put(container, *"abcde")
        copy(path, saved)
        container.split("0")
        put(container, *"fghij")
        with closing(sqlite3.connect(saved)) as db, closing(sqlite3.connect(path)) as restored:
            db.backup(restored)
        put(container, *"01234")
        feed = container.feed("all")
        assert read(feed, feed.position_of("0", "earliest")) == list("abcde01234")


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 3)),
        st.sampled_from([("reopen",), ("copy",), ("restore",), ("trim",)]),
    ),
    min_size=1,
    max_size=14,
)


class Model:
    """One writer, what the feed of all versions should hold, and every position ever seen, with
    what had been read on the way to it."""

    def __init__(self, folder: Path) -> None:
        self.path, self.saved = folder / "c.db", folder / "saved.db"
        self.container = make(self.path)
        self.history: list[str] = []
        self.seen = {self.feed.position_of("0", "latest"): ()}
        self.sent = 0
        self.copy()

    @property
    def feed(self) -> ChangeFeed:
        return self.container.feed("all")

    def put(self, count: int) -> None:
        for _ in range(count):
            self.sent += 1
            put(self.container, str(self.sent))
            self.history.append(str(self.sent))
            self.seen[self.feed.position_of("0", "latest")] = tuple(self.history)

    def reopen(self) -> None:
        self.container.close()
        self.container = Container.open(self.path)

    def copy(self) -> None:
        copy(self.path, self.saved)
        self.copied = list(self.history)

    def restore(self) -> None:
        self.container.close()
        restore(self.saved, self.path)
        self.container, self.history = Container.open(self.path), list(self.copied)

    def trim(self) -> None:
        self.container.trim(before_lsn=len(self.history))

    def require(self, position: Checkpoint, before: tuple[str, ...]) -> None:
        feed, history, place = self.feed, self.history, position.next_sequence - 1
        first = result_of(feed.extents())[0].first - 1
        if tuple(history[:place]) == before and place >= first:
            assert read(feed, position) == history[place:]
            return
        told = gone(feed, position)
        common = len(list(takewhile(bool, map(eq, history, before))))
        resume = told.resume.next_sequence - 1
        assert resume <= max(first, common)
        assert told.shared is None or resume == common
        if resume >= first:
            assert read(feed, told.resume) == history[resume:]


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_a_position_is_good_where_its_history_is_the_containers_and_gone_elsewhere(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    model = Model(tmp_path_factory.mktemp("container"))
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    for position, before in model.seen.items():
        model.require(position, before)
    model.container.close()


@pytest.mark.parametrize("ahead_s", [8 * DAY_S, 1e8, -8 * DAY_S])
def test_one_writers_clock_ends_no_documents_time(tmp_path: Path, ahead_s: float) -> None:
    clocks = FakeClocks(2_000_000_000.0)
    with make(tmp_path / "c.db", ttl_s=7 * DAY_S, versions_s=DAY_S, clocks=clocks) as container:
        put(container, *map(str, range(100)))
        wrong = FakeClocks(clocks.now, ahead=ahead_s)
        with Container.open(container.path, clocks=wrong) as writer:
            put(writer, "100")
            assert writer.trim() == (0, 0)
            assert writer.read("7", "k") is not None
        assert container.properties().documents == 101
        put(container, "101")
        times = {
            change.time.timestamp() for change in container.changes("0", max_items=200).changes
        }
        assert times == {clocks.now}
        clocks.now += DAY_S + 1
        assert container.trim() == (0, 102)
        clocks.now += 6 * DAY_S
        assert container.read("7", "k") is None
        assert container.trim().documents == 102


def test_a_container_of_format_1_goes_on_with_its_readers_positions(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript((Path(__file__).with_name("format_1.sql")).read_text())
        db.execute("PRAGMA journal_mode=WAL")
    clocks = FakeClocks(1_700_000_000.0 + 30 * DAY_S)
    with Container.open(path, clocks=clocks) as container:
        feed = container.feed("all")
        tokens = [
            change.offset for change in feed.read_batch("1", feed.position_of("1", 1), 9).events
        ]
        assert tokens == [f"bdf8b83d83917fa9-{lsn}" for lsn in (1, 2, 4, 5)]
        put(container, "new")
        after = Checkpoint(next_sequence=5, token="bdf8b83d83917fa9-4")
        assert feed.read_batch("1", after, 9).events[0].lsn == 5
        old = container.read("0", "k0")
        assert container.replace({"id": "0", "key": "k0"}, if_match=old["_etag"])
        clocks.now += 50
        assert container.read("1", "k1") is not None
        clocks.now += 51
        assert container.read("1", "k1") is None
