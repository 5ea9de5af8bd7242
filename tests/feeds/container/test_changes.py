import asyncio
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import pytest
from support.blocking import result_of
from support.clocks import FakeClocks

from leasehold.core.change import Change, Page
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, PositionGone
from leasehold.feeds.container import Container
from leasehold.feeds.container import reader as container_reader
from leasehold.feeds.container.documents import hash_of


def make(path: Path, **settings: Any) -> Container:
    made = {"name": "alerts", "namespace": "homes", "partition_key": "/key", "ranges": 1}
    return Container.create(path, **made | settings)


def put(container: Container, id: str, **fields: Any) -> dict[str, Any]:
    return container.upsert({"id": id, "key": "k", **fields})


def changes(container: Container, mode: Any = "latest", range: str = "0") -> list[Change]:
    """All of a range, page by page."""
    found: list[Change] = []
    page = container.changes(range, max_items=3, mode=mode)
    while page.changes:
        found += page.changes
        page = container.changes(range, page.continuation, 3, mode=mode)
    return found


def test_latest_has_each_changed_document_once_in_its_newest_state(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        for id in "abcd":
            put(container, id, value=0)
        newer = put(container, "b", value=1)
        container.delete("c", "k")
        found = changes(container)
        assert [(c.document or {})["id"] for c in found] == ["a", "d", "b"]
        assert [c.lsn for c in found] == [1, 4, 5]
        assert found[-1].document == newer
        assert {c.operation for c in found} == {"upsert"}
        assert {c.previous for c in found} == {None}


def test_all_has_every_change_with_what_was_before(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        first = put(container, "a", value=0)
        second = put(container, "a", value=1)
        third = container.patch("a", "k", {"value": 2})
        container.delete("a", "k")
        again = put(container, "a", value=3)
        assert [
            (c.lsn, c.operation, c.document, c.previous) for c in changes(container, "all")
        ] == [
            (1, "insert", first, None),
            (2, "replace", second, first),
            (3, "replace", third, second),
            (4, "delete", None, third),
            (5, "insert", again, None),
        ]


def test_a_change_says_when_and_where_it_was(tmp_path: Path) -> None:
    clock = FakeClocks(1_800_000_000.0)
    with make(tmp_path / "c.db", clocks=clock, namespace="n.n") as container:
        put(container, "a")
        clock.now += 0.5
        container.upsert({"id": "b", "key": 7})
        first, second = changes(container)
        assert first.time == datetime.fromtimestamp(1_800_000_000, UTC)
        assert second.time - first.time == timedelta(seconds=0.5)
        assert (first.partition_key, second.partition_key) == ("k", "7")
        assert first.range == first.partition == "0"
        assert (first.document or {})["_ts"] == 1_800_000_000


def test_time_does_not_run_back_when_the_clock_does(tmp_path: Path) -> None:
    clock = FakeClocks(1_800_000_000.0)
    with make(tmp_path / "c.db", clocks=clock) as container:
        put(container, "a")
        clock.ahead -= 3600
        put(container, "b")
        first, second = changes(container)
        assert first.time == second.time
        assert container.changes("0", start=second.time).changes == [first, second]


@pytest.mark.parametrize("mode", ["latest", "all"])
def test_reading_may_begin_now_at_a_time_or_at_the_beginning(tmp_path: Path, mode: Any) -> None:
    clock = FakeClocks(1_800_000_000.0)
    with make(tmp_path / "c.db", clocks=clock) as container:
        for id in "abc":
            put(container, id)
            clock.now += 1

        def ids(start: Any) -> list[str]:
            page = container.changes("0", start=start, mode=mode)
            return [(c.document or {})["id"] for c in page.changes]

        def at(seconds: float) -> datetime:
            return datetime.fromtimestamp(1_800_000_000 + seconds, UTC)

        assert ids("beginning") == ids("earliest") == ids(at(-5)) == ["a", "b", "c"]
        assert ids(at(1)) == ids(at(0.000001)) == ids(f"time:{at(1).isoformat()}") == ["b", "c"]
        assert ids("now") == ids("latest") == ids(at(2.5)) == []
        now = container.changes("0", start="now", mode=mode).continuation
        put(container, "d")
        assert len(container.changes("0", now, mode=mode).changes) == 1
        with pytest.raises(BadInput):
            ids("yesterday")


def test_an_empty_page_goes_on_where_it_was(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        page = container.changes("0")
        assert (page.changes, page.children) == ((), {})
        assert container.changes("0", page.continuation) == page
        put(container, "a")
        page = container.changes("0", page.continuation)
        assert len(page.changes) == 1
        assert container.changes("0", page.continuation).continuation == page.continuation


def test_reading_ends_at_the_end_though_nothing_that_is_left_lies_there(tmp_path: Path) -> None:
    clock = FakeClocks(1_800_000_000.0)
    with make(tmp_path / "c.db", ttl_s=-1, clocks=clock) as container:
        feed = container.feed()
        for id in "abc":
            put(container, id)
        begin = feed.position_of("0", "earliest")
        put(container, "b", ttl=5)
        container.delete("c", "k")
        clock.now += 10
        one = feed.read_batch("0", begin, 10)
        assert [change.lsn for change in one.events] == [1]
        assert one.next.next_sequence == 2  # what comes after it is another read's
        (extent,) = result_of(feed.extents())
        rest = feed.read_batch("0", one.next, 10)
        assert (list(rest.events), rest.next.next_sequence) == ([], extent.end)
        assert rest.next == feed.position_of("0", "latest")
        put(container, "d")
        assert len(feed.read_batch("0", rest.next, 10).events) == 1


@pytest.mark.parametrize("mode", ["latest", "all"])
def test_reading_of_a_child_ends_at_its_end_though_its_sibling_has_the_last_change(
    tmp_path: Path, mode: Any
) -> None:
    with make(tmp_path / "c.db") as container:
        for n in range(20):
            container.upsert({"id": "a", "key": f"k{n}"})
        container.split("0")
        feed = container.feed(mode)
        for extent in result_of(feed.extents()):
            position = feed.position_of(extent.partition, "earliest")
            while (batch := feed.read_batch(extent.partition, position, 100)).events:
                position = batch.next
            assert batch.next.next_sequence == extent.end


def test_continuations_go_on_in_the_children_of_a_split_range(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        container.upsert_many({"id": str(n), "key": f"k{n}"} for n in range(20))
        page = container.changes("0", max_items=8)
        container.split("0")
        container.split("1")
        container.upsert_many({"id": f"new{n}", "key": f"k{n}"} for n in range(20))
        found, open_pages = list(page.changes), {"0": page.continuation}
        finished = []
        while open_pages:
            each, continuation = open_pages.popitem()
            page = container.changes(each, continuation, 3)
            found += page.changes
            if page.changes:
                open_pages[each] = page.continuation
            elif page.children:
                finished.append(each)
                open_pages |= page.children
        ids = [(c.document or {})["id"] for c in found]
        assert sorted(ids) == sorted(name for n in range(20) for name in (f"{n}", f"new{n}"))
        assert sorted(finished) == ["0", "1"]


def test_a_continuation_of_another_container_is_refused(tmp_path: Path) -> None:
    with make(tmp_path / "a.db") as container, make(tmp_path / "b.db") as other:
        put(container, "a")
        put(other, "a")
        alien = other.changes("0").continuation
        with pytest.raises(PositionGone, match="position of another container") as caught:
            container.changes("0", alien)
        assert caught.value.reason == "other feed"
        assert caught.value.earliest == container.feed().position_of("0", "earliest")


@pytest.mark.parametrize("text", ["", "x", "1", "0123456789abcdef-1:latest:0", "é"])
def test_what_is_no_continuation_is_refused(container: Container, text: str) -> None:
    with pytest.raises(BadInput, match="not a continuation"):
        container.changes("0", text)


def test_a_continuation_of_another_range_or_mode_is_refused(container: Container) -> None:
    page: Page = container.changes("0")
    with pytest.raises(BadInput, match="is of range 0, mode latest"):
        container.changes("1", page.continuation)
    with pytest.raises(BadInput, match="cannot be used for range 0, mode all"):
        container.changes("0", page.continuation, mode="all")


@pytest.mark.parametrize("range", ["4", "99", "-1", "01", "x", "", "0 ", "9" * 30, "é", "²"])
def test_an_unknown_range_is_refused_and_the_known_ones_are_named(
    container: Container, range: str
) -> None:
    for call in (container.changes, container.split):
        with pytest.raises(BadInput, match=r"is unknown: .* has 0, 1, 2, 3"):
            call(range)


@pytest.mark.parametrize("bad", [0, -1])
def test_a_page_holds_at_least_one_change(container: Container, bad: int) -> None:
    with pytest.raises(BadInput, match="at least 1"):
        container.changes("0", max_items=bad)


def test_a_mode_that_there_is_not_is_refused(container: Container) -> None:
    with pytest.raises(BadInput, match="latest, all"):
        container.feed("newest")  # type: ignore[arg-type]


def test_the_modes_are_feeds_of_different_names(container: Container) -> None:
    assert (container.feed().name, container.feed("all").name) == ("alerts", "alerts.all")
    assert container.feed().namespace == "homes.local"


def test_a_page_is_cut_by_size_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_reader, "READ_CHARS_MAX", 2500)
    with make(tmp_path / "c.db") as container:
        for id in "abcdefg":
            put(container, id, text="x" * 1000)
        sizes, page = [], container.changes("0")
        while page.changes:
            sizes.append(len(page.changes))
            page = container.changes("0", page.continuation)
        assert sizes == [3, 3, 1]


def test_remaining_counts_what_is_still_to_be_read(tmp_path: Path) -> None:
    with make(tmp_path / "c.db") as container:
        for mode, counts in (("latest", [4, 2, 0]), ("all", [7, 2, 0])):
            feed = container.feed(mode)  # type: ignore[arg-type]
            if mode == "latest":
                for id in "abcdeab":
                    put(container, id)
                container.delete("e", "k")
                counts_all = result_of(
                    container.feed("all").remaining({"0": Checkpoint(next_sequence=1)})
                )
                assert counts_all == {"0": 8}
            else:
                container.trim(before_lsn=2)
            start = feed.position_of("0", "earliest")
            late = Checkpoint(next_sequence=6 if mode == "latest" else 7)
            end = feed.position_of("0", "latest")
            found = [result_of(feed.remaining({"0": p}))["0"] for p in (start, late, end)]
            assert found == counts


def test_remaining_of_a_position_of_another_container_is_the_whole_backlog(
    tmp_path: Path,
) -> None:
    with make(tmp_path / "c.db") as container:
        for id in "abc":
            put(container, id)
        for alien in (
            Checkpoint(next_sequence=2, token="0123456789abcdef-1"),
            Checkpoint(next_sequence=1000),
        ):
            assert result_of(container.feed().remaining({"0": alien})) == {"0": 3}
        with pytest.raises(BadInput, match="unknown"):
            result_of(container.feed().remaining({"7": Checkpoint(next_sequence=0)}))
        at = container.feed().position_of("0", 2)
        assert asyncio.run(container.feed().remaining({"0": at})) == {"0": 2}


def test_remaining_is_told_range_by_range_and_for_split_ones(container: Container) -> None:
    container.upsert_many({"id": str(n), "home_id": f"H{n}"} for n in range(200))
    feed, before = container.feed(), {}
    for partition in result_of(feed.partitions()):
        before[partition.id] = feed.position_of(partition.id, "earliest")
    counts = result_of(feed.remaining(before))
    assert sum(counts.values()) == 200
    left, right = container.split("0")
    assert result_of(feed.remaining(before)) == counts
    halves = {child: feed.position_of(child, "earliest") for child in (left, right)}
    assert sum(result_of(feed.remaining(halves)).values()) == counts["0"]
    container.upsert_many({"id": str(n), "home_id": f"H{n}"} for n in range(200))
    assert result_of(feed.remaining(before))["0"] == 0
    assert sum(result_of(feed.remaining(halves)).values()) == counts["0"]


def test_a_container_may_keep_no_versions(tmp_path: Path) -> None:
    with make(tmp_path / "c.db", versions_s=0) as container:
        put(container, "a")
        put(container, "a")
        assert len(changes(container)) == 1
        assert container.trim(max_age_s=0).changes == 0
        with pytest.raises(BadInput, match="make it with versions_s="):
            container.feed("all")


def test_versions_that_are_too_old_are_removed_by_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClocks(1_800_000_000.0)
    monkeypatch.setattr("leasehold.feeds.container.container.UPKEEP_INTERVAL_S", 0.0)
    with make(tmp_path / "c.db", versions_s=100, clocks=clock) as container:
        first = put(container, "a", value=1)
        begin = container.changes("0", mode="all").continuation
        clock.now += 60
        second = put(container, "a", value=2)
        clock.now += 40
        put(container, "c")
        assert len(changes(container, "all")) == 3
        clock.now += 20
        container.upsert({"id": "b", "key": "k"})
        found = changes(container, "all")
        assert [(c.lsn, c.previous) for c in found] == [(2, first), (3, None), (4, None)]
        assert container.read("a", "k") == second
        assert [c.lsn for c in changes(container)] == [2, 3, 4]
        container.trim(max_age_s=0)
        start = Checkpoint(next_sequence=1)
        assert len(container.feed().read_batch("0", start, 10).events) == 3
        with pytest.raises(PositionGone, match="older than what is kept") as caught:
            container.changes("0", begin.replace("-1:all:0:2", "-0:all:0:1"), mode="all")
        assert caught.value.reason == "retention"
        assert caught.value.earliest.next_sequence == 4


def test_retention_takes_nothing_from_a_reader_that_has_read_all_of_its_range(
    container: Container,
) -> None:
    feed = container.feed("all")
    quiet, busy = (
        "quiet",
        next(
            f"busy{n}"
            for n in range(99)
            if container.range_of(f"busy{n}") != container.range_of("quiet")
        ),
    )
    container.upsert({"id": "a", "home_id": quiet})
    end = feed.position_of(container.range_of(quiet), "latest")
    for n in range(10):
        container.upsert({"id": str(n), "home_id": busy})
    assert container.trim(max_age_s=0).changes == 11
    assert feed.read_batch(container.range_of(quiet), end, 10).next == end
    with pytest.raises(PositionGone):
        feed.read_batch(container.range_of(busy), Checkpoint(next_sequence=2), 10)


def test_retention_across_a_split_is_noticed_by_those_whom_it_concerns(
    container: Container,
) -> None:
    feed = container.feed("all")
    keys = [f"H{n}" for n in range(300) if container.range_of(f"H{n}") == "0"]
    container.upsert_many({"id": "x", "home_id": key} for key in [*keys, keys[0]])
    start = feed.position_of("0", "earliest")
    last = feed.position_of("0", container.properties().next_lsn - 1)
    left, right = container.split("0")
    keys_left = [key for key in keys if container.range_of(key) == left]
    container.upsert({"id": "y", "home_id": keys[0]})
    before = {r: feed.position_of(r, "earliest") for r in (left, right)}
    after = {r: feed.position_of(r, "latest") for r in (left, right)}
    container.trim(max_age_s=0)
    for each, position in [("0", start), ("0", last), *before.items()]:
        with pytest.raises(PositionGone):
            feed.read_batch(each, position, 10)
    for each, position in after.items():
        assert feed.read_batch(each, position, 10).next == position
    assert (
        feed.read_batch("0", feed.position_of("0", "earliest"), 10).children.keys() == after.keys()
    )
    container.upsert({"id": "z", "home_id": keys_left[0]})
    assert len(feed.read_batch(left, after[left], 10).events) == 1


@pytest.fixture
def timed(tmp_path: Path) -> tuple[Container, FakeClocks]:
    clock = FakeClocks(1_800_000_000.0)
    return make(tmp_path / "ttl.db", ttl_s=10, clocks=clock), clock


def test_a_document_whose_time_is_over_is_gone_from_everywhere(
    timed: tuple[Container, FakeClocks],
) -> None:
    container, clock = timed
    old = put(container, "a")
    clock.now += 9
    put(container, "b")
    clock.now += 1
    assert container.read("a", "k") is None
    assert [document["id"] for document in container.list("k")] == ["b"]
    assert [(c.document or {})["id"] for c in changes(container)] == ["b"]
    assert result_of(container.feed().remaining({"0": Checkpoint(next_sequence=1)})) == {"0": 1}
    assert container.trim().documents == 1
    last = changes(container, "all")[-1]
    assert (last.operation, last.expired, last.document) == ("delete", True, None)
    assert last.previous == old
    assert container.properties().documents == 1


@pytest.mark.parametrize(
    "write",
    [
        lambda c: c.insert({"id": "a", "key": "k"}),
        lambda c: c.upsert({"id": "a", "key": "k"}),
        lambda c: c.upsert_many([{"id": "a", "key": "k"}]),
    ],
)
def test_a_document_whose_time_is_over_can_be_made_again(
    timed: tuple[Container, FakeClocks], write: Callable[[Container], Any]
) -> None:
    container, clock = timed
    put(container, "a")
    clock.now += 10
    write(container)
    found = [(c.operation, c.expired) for c in changes(container, "all")]
    assert found == [("insert", False), ("delete", True), ("insert", False)]
    assert container.properties().documents == 1


def test_a_change_gives_a_document_its_time_anew(timed: tuple[Container, FakeClocks]) -> None:
    container, clock = timed
    put(container, "a")
    clock.now += 9
    put(container, "a")
    clock.now += 9
    assert container.read("a", "k") is not None
    clock.now += 1
    assert container.read("a", "k") is None


def test_a_documents_own_ttl_comes_first(timed: tuple[Container, FakeClocks]) -> None:
    container, clock = timed
    put(container, "short", ttl=2)
    put(container, "long", ttl=100)
    put(container, "for ever", ttl=-1)
    put(container, "default")
    left = []
    for later in (3, 8, 90, 10**9):
        clock.now += later
        left.append([document["id"] for document in container.list("k")])
    assert left == [
        ["default", "for ever", "long"],
        ["for ever", "long"],
        ["for ever"],
        ["for ever"],
    ]
    for ttl in (0, -2, "1", True, None, 1 << 31, 1e300, 10**400):
        with pytest.raises(BadInput, match="ttl is"):
            put(container, "x", ttl=ttl)


def test_another_time_to_live_counts_for_the_documents_that_are_there(
    timed: tuple[Container, FakeClocks],
) -> None:
    container, clock = timed

    def left() -> list[str]:
        return [document["id"] for document in container.list("k")]

    put(container, "default")
    put(container, "own", ttl=30)
    clock.now += 8
    container.change_ttl(20)
    put(container, "new")
    clock.now += 11
    assert left() == ["default", "new", "own"]
    clock.now += 2  # 21 s after it was written
    assert left() == ["new", "own"]
    container.change_ttl(-1)
    clock.now += 10
    assert left() == ["new"]
    container.change_ttl(None)
    assert container.properties().ttl_s is None
    put(container, "ignored", ttl=1)
    clock.now += 1000
    assert left() == ["ignored", "new"]
    container.change_ttl(5)
    clock.now += 2
    assert left() == ["new"]
    clock.now += 4
    assert left() == []
    for ttl_s in (0, 1 << 31, inf):
        with pytest.raises(BadInput, match="ttl_s"):
            container.change_ttl(ttl_s)
    with Container.open(container.path, clocks=clock) as again:
        assert again.properties().ttl_s == 5


def test_without_ttl_s_the_field_means_nothing_and_with_minus_one_only_the_field_counts(
    tmp_path: Path,
) -> None:
    clock = FakeClocks(1_800_000_000.0)
    with (
        make(tmp_path / "off.db", clocks=clock) as off,
        make(tmp_path / "on.db", clocks=clock, ttl_s=-1) as on,
    ):
        for container in (off, on):
            put(container, "a", ttl=5)
            put(container, "b")
        put(off, "c", ttl="soon")
        clock.now += 10**9
        assert [document["id"] for document in off.list("k")] == ["a", "b", "c"]
        assert [document["id"] for document in on.list("k")] == ["b"]


def test_expired_documents_are_removed_by_writers(
    timed: tuple[Container, FakeClocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    container, clock = timed
    monkeypatch.setattr("leasehold.feeds.container.container.UPKEEP_ROWS", 7)
    container.upsert_many({"id": str(n), "key": f"k{n}"} for n in range(40))
    clock.now += 20
    monkeypatch.setattr("leasehold.feeds.container.container.UPKEEP_INTERVAL_S", 0.0)
    put(container, "new")
    assert container.properties().documents == 1
    assert container.properties().next_lsn == 1 + 40 + 1 + 40


def test_requests_are_counted_by_verb(container: Container) -> None:
    container.insert({"id": "a", "home_id": "H1"})
    container.read("a", "H1")
    feed = container.feed()
    asyncio.run(feed.partitions())
    asyncio.run(feed.extents())
    container.changes("0")
    assert container.requests == feed.requests
    assert container.requests == {
        "insert": 1,
        "read_document": 1,
        "partitions": 1,
        "extents": 1,
        "locate": 1,
        "read": 1,
    }


def test_a_feed_can_be_sent_to_another_process(container: Container) -> None:
    container.insert({"id": "a", "home_id": "H1"})
    feed = pickle.loads(pickle.dumps(container.feed("all")))
    assert (feed.mode, feed.name) == ("all", "alerts.all")
    assert result_of(feed.extents()) == result_of(container.feed("all").extents())
    feed.close()


def test_a_quiet_child_is_not_searched_again_and_again(container: Container) -> None:
    """What was written before a split may lie all in the other half."""
    at = 1 << 28
    keys = [key for n in range(2000) if container.range_of(key := f"H{n}") == "0"]
    quiet = [key for key in keys if hash_of(key) < at]
    container.upsert_many({"id": "x", "home_id": key} for key in keys if key not in quiet)
    left, right = container.split("0", at=at)
    feed = container.feed()
    start = Checkpoint(next_sequence=1)
    assert feed.read_batch(left, start, 5).events == ()
    steps: list[int] = []
    with feed._reader._file.reading() as db:
        db.set_progress_handler(lambda: steps.append(1), 20)
    assert feed.read_batch(left, start, 5).events == ()
    few = len(steps)
    feed._reader._gaps.clear()
    assert feed.read_batch(left, start, 5).events == ()
    assert len(steps) - few > 3 * few
    with feed._reader._file.reading() as db:
        db.set_progress_handler(None, 0)
    assert len(feed.read_batch(right, start, 1000).events) == len(keys) - len(quiet)
    container.upsert({"id": "x", "home_id": quiet[0]})
    assert len(feed.read_batch(left, start, 1000).events) == 1
