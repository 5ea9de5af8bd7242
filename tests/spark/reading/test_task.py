"""What an executor does with a task, without Spark."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import leasehold as lh
from leasehold.core.model import Group
from leasehold.core.ranges import Range
from leasehold.errors import BadInput, FeedUnavailable, StoreUnavailable
from leasehold.ports import DeadLetter, LetterFilter
from leasehold.spark.reading import task
from leasehold.spark.reading.columns import CORRUPT
from leasehold.spark.reading.frames import plan_reading
from leasehold.spark.reading.task import NO_FIT, Address, Letters, columnar
from leasehold.stores.dead_letters.sqlite import SqliteDeadLetters

GROUP = Group(namespace="t", feed="h", name="activity")
BODIES = [
    b'{"home": "H1", "value": 1.5}',
    b"{",
    b'{"home": "H2", "value": "high"}',
    b"\xff\xfe",
    b'{"home": "H3"}',
]
TYPED = [("home", pa.string()), ("value", pa.float64())]


@pytest.fixture
def hub(tmp_path: Path) -> lh.Hub:
    hub = lh.Hub.create(tmp_path / "h.db", name="h", namespace="t", partitions=1)
    hub.send([lh.EventData(body) for body in BODIES])
    return hub


def read(hub: Any, columns: list[Any], first: int = 0, end: int = 5, **how: Any) -> pa.Table:
    reading = plan_reading(Address.of(hub), schema=pa.schema(columns), **how)
    reading = pickle.loads(pickle.dumps(reading)) if "at_source" not in how else reading
    batches = list(reading.read([Range(partition="0", first=first, end=end)]))
    return pa.Table.from_batches(batches, reading.result)


def test_rows_that_do_not_fit_stay_with_nulls_and_their_body(hub: lh.Hub) -> None:
    table = read(hub, [("sequence", pa.int64()), *TYPED, (CORRUPT, pa.string())])
    assert table.to_pydict() == {
        "sequence": [0, 1, 2, 3, 4],
        "home": ["H1", None, None, None, "H3"],
        "value": [1.5, None, None, None, None],
        CORRUPT: [None, "{", '{"home": "H2", "value": "high"}', "\\xff\\xfe", None],
    }


def test_rows_that_do_not_fit_stay_even_where_nobody_asks_for_their_body(hub: lh.Hub) -> None:
    assert read(hub, TYPED)["home"].to_pylist() == ["H1", None, None, None, "H3"]
    assert read(hub, [(CORRUPT, pa.string())])[CORRUPT].null_count == 5 - 2


def test_with_a_place_for_them_rows_that_do_not_fit_become_dead_letters(
    hub: lh.Hub, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/dead.db"
    letters = Letters(store=lh.open_dead_letters(url), group=GROUP)
    columns = [("sequence", pa.int64()), *TYPED]
    assert read(hub, columns, letters=letters)["sequence"].to_pylist() == [0, 4]
    found = asyncio.run(lh.open_dead_letters(url).list(LetterFilter()))
    assert [(letter.sequence, letter.body) for letter in found] == [
        (1, BODIES[1]),
        (2, BODIES[2]),
        (3, BODIES[3]),
    ]
    assert {letter.error for letter in found} == {NO_FIT}
    assert {letter.group for letter in found} == {GROUP}
    # A task that is run again puts them again, and there is still one of each.
    read(hub, columns, letters=letters)
    assert len(asyncio.run(lh.open_dead_letters(url).list(LetterFilter()))) == 3


class CountingLetters(SqliteDeadLetters):
    """Knows how many letters each put had."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, **settings)
        self.puts: list[int] = []
        self.closed = 0

    async def close(self) -> None:
        await super().close()
        self.closed += 1

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        await super().put(letters)
        self.puts.append(len(letters))


@pytest.fixture
def store(tmp_path: Path) -> CountingLetters:
    return CountingLetters(tmp_path / "dead.db")


def by_one(hub: lh.Hub, store: CountingLetters, *sequences: int) -> Iterator[pa.RecordBatch]:
    """One task that reads these as chunks of a row each."""
    letters = Letters(store=store, group=GROUP)
    reading = plan_reading(Address.of(hub), schema=pa.schema(TYPED), letters=letters)
    return reading.read([Range(partition="0", first=n, end=n + 1) for n in sequences])


def test_a_task_puts_the_letters_of_many_chunks_at_once(
    hub: lh.Hub, store: CountingLetters
) -> None:
    assert sum(batch.num_rows for batch in by_one(hub, store, *range(5))) == 2
    assert store.puts == [3]


def test_letters_are_put_before_any_row_leaves_that_was_read_after_them(
    hub: lh.Hub, store: CountingLetters
) -> None:
    batches = by_one(hub, store, 0, 1, 4, 2, 0)
    seen = []
    for batch in batches:
        seen += [(home, sum(store.puts)) for home in batch["home"].to_pylist()]
    assert seen == [("H1", 0), ("H3", 2), ("H1", 2)]


def test_no_connection_stays_open_between_two_puts(
    hub: lh.Hub, store: CountingLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers end idle ones, and allow so many only."""
    monkeypatch.setattr(task, "PUT_LETTERS", 1)
    seen = [(len(store.puts), store.closed) for _ in by_one(hub, store, 1, 4, 2, 4)]
    assert set(seen) == {(1, 1), (2, 2)}


def test_letters_that_wait_are_not_many(
    hub: lh.Hub, store: CountingLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "PUT_LETTERS", 2)
    list(by_one(hub, store, 1, 2, 3, 1, 2))
    assert store.puts == [2, 2, 1]


def test_a_chunk_of_many_bad_rows_does_not_keep_others_from_the_store_for_long(
    hub: lh.Hub, store: CountingLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "PUT_MAX", 2)
    letters = Letters(store=store, group=GROUP)
    reading = plan_reading(Address.of(hub), schema=pa.schema(TYPED), letters=letters)
    list(reading.read([Range(partition="0", first=0, end=5)]))
    assert store.puts == [2, 1]


@pytest.mark.parametrize("where", ["body", "value", "name"])
def test_letters_that_wait_are_not_large(
    hub: lh.Hub, store: CountingLetters, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Nor does one put become larger than what has to be put together."""
    monkeypatch.setattr(task, "HELD_BYTES", 25_000)
    for size in (10_000, 10_000, 10_000, 50_000, 10):
        long = "{" * size
        event = {
            "body": lh.EventData(long),
            "value": lh.EventData("{", {"a": long}),
            "name": lh.EventData("{", {long: 1}),
        }
        hub.send([event[where]])
    list(by_one(hub, store, *range(5, 10)))
    assert store.puts == [2, 1, 1, 1]


@pytest.mark.parametrize("cut", [False, True])
def test_rows_that_wait_are_not_large(
    hub: lh.Hub, store: CountingLetters, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """A row that is cut out of many keeps these in memory."""
    rows, chunks = 1_000, 9
    for _ in range(chunks):
        hub.send([lh.EventData(b"{")] + [lh.EventData(BODIES[0])] * (rows - 1))
    monkeypatch.setattr(task, "HELD_BYTES", 3 * 8 * rows)
    reading = plan_reading(
        Address.of(hub),
        schema=pa.schema([("value", pa.float64())]),
        at_source=lambda frame: frame.head(1 if cut else rows),
        letters=Letters(store=store, group=GROUP),
    )
    starts = range(5, 5 + rows * chunks, rows)
    found = list(reading.read([Range(partition="0", first=n, end=n + rows) for n in starts]))
    assert sum(store.puts) == chunks
    assert max(store.puts) <= 2
    assert sum(batch.num_rows for batch in found) == chunks * (1 if cut else rows - 1)


def test_a_task_that_cannot_put_its_letters_fails(
    hub: lh.Hub, store: CountingLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def put(letters: Sequence[DeadLetter]) -> None:
        raise StoreUnavailable("no disk")

    monkeypatch.setattr(store, "put", put)
    batches = by_one(hub, store, 0, 1, 4)
    assert next(batches)["home"].to_pylist() == ["H1"]
    with pytest.raises(StoreUnavailable, match="no disk"):
        next(batches)


@pytest.mark.parametrize("reads", [True, False])
def test_a_store_that_refuses_a_letter_blames_it_only_if_it_can_be_read(
    hub: lh.Hub, store: CountingLetters, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise BadInput("refused")

    monkeypatch.setattr(store, "put", refuse)
    if not reads:
        monkeypatch.setattr(store, "list", refuse)
    with pytest.raises(lh.LetterRefused if reads else BadInput, match="refused"):
        list(by_one(hub, store, 1))


def test_a_task_without_bad_rows_does_not_open_the_dead_letters(
    hub: lh.Hub, store: CountingLetters
) -> None:
    list(by_one(hub, store, 0, 4))
    assert not store.path.exists()


def test_dead_letters_that_executors_cannot_reach_are_refused() -> None:
    with pytest.raises(BadInput, match="out of the reach of Spark's executors"):
        Letters(store=lh.open_dead_letters("memory://here"), group=GROUP)


def test_the_users_function_gets_chunks_and_says_what_columns_there_are(hub: lh.Hub) -> None:
    def per_home(frame: pl.DataFrame) -> pl.DataFrame:
        return frame.group_by("home").agg(pl.len().alias("count")).sort("home")

    table = read(hub, TYPED, at_source=per_home)
    assert table.schema.types == [pa.string(), pa.int64()]
    assert table.to_pydict() == {"home": [None, "H1", "H3"], "count": [3, 1, 1]}


def test_a_function_that_returns_no_frame_is_refused_when_the_reading_is_planned(
    hub: lh.Hub,
) -> None:
    with pytest.raises(BadInput, match="must return a polars DataFrame, not a NoneType"):
        read(hub, TYPED, at_source=lambda frame: None)


def test_deleted_documents_are_no_bad_rows(tmp_path: Path) -> None:
    with lh.Container.create(
        tmp_path / "c.db",
        name="c",
        namespace="t",
        partition_key="/id",
        ranges=1,
        versions_s=1e9,
    ) as container:
        container.upsert({"id": "a", "value": 1})
        container.upsert({"id": "b", "value": "high"})
        container.delete("a", "a")
        columns = [("operation", pa.string()), ("value", pa.float64()), (CORRUPT, pa.string())]
        table = read(container.feed("all"), columns, 1, 4)
        assert table["operation"].to_pylist() == ["insert", "insert", "delete"]
        assert table["value"].to_pylist() == [1.0, None, None]
        assert [row is None for row in table[CORRUPT].to_pylist()] == [True, False, True]


def test_documents_that_do_not_fit_become_dead_letters(
    tmp_path: Path, store: CountingLetters
) -> None:
    with lh.Container.create(
        tmp_path / "c.db", name="c", namespace="t", partition_key="/id", ranges=1
    ) as container:
        container.upsert({"id": "a", "value": 1})
        container.upsert({"id": "b", "value": "high"})
        letters = Letters(store=store, group=GROUP)
        table = read(container.feed(), [("value", pa.float64())], 1, 3, letters=letters)
        assert table["value"].to_pylist() == [1.0]
    (letter,) = asyncio.run(store.list(LetterFilter()))
    assert json.loads(letter.body)["value"] == "high"


def test_a_feed_that_was_made_anew_is_not_taken_for_the_old_one(hub: lh.Hub) -> None:
    reading = plan_reading(Address.of(hub))
    list(reading.read([Range(partition="0", first=0, end=5)]))
    hub.close()
    for file in hub.path.parent.iterdir():
        file.unlink()
    anew = lh.Hub.create(hub.path, name="h", namespace="t", partitions=1)
    anew.send([lh.EventData(b"other")] * 5)
    with pytest.raises((FeedUnavailable, BadInput), match="recreated"):
        list(reading.read([Range(partition="0", first=0, end=5)]))
    again = plan_reading(Address.of(anew))
    (batch,) = again.read([Range(partition="0", first=0, end=1)])
    assert batch["body"].to_pylist() == [b"other"]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ([("sequence", pa.string())], "column sequence is int64, not string"),
        ([("v", pa.decimal128(9, 2))], "column v cannot be decoded to decimal128"),
        ([(CORRUPT, pa.int64())], "column _corrupt_record must be a string"),
    ],
)
def test_columns_that_cannot_be_are_refused(hub: lh.Hub, columns: list[Any], told: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(hub, columns)
    assert told in str(caught.value)


def test_only_feeds_that_executors_can_open_are_taken() -> None:
    with pytest.raises(BadInput, match="cannot be read by Spark"):
        columnar(object())
