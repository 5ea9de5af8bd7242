"""A hub that has lost its newest events, because an older copy was restored or power failed."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from itertools import takewhile
from operator import eq
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.blocking import result_of

from leasehold.core.event import EventData
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput, FeedUnavailable, PositionGone
from leasehold.feeds.hub import Hub
from leasehold.feeds.hub import offsets as hub_offsets


def send(hub: Hub, *bodies: str) -> None:
    """Bodies of one length: nothing but the generation tells them apart."""
    hub.send([EventData(f"{body:>8}") for body in bodies], partition_id=0)


def make(path: Path) -> Hub:
    return Hub.create(path, name="h", namespace="n", partitions=1)


def send_elsewhere(path: Path, *bodies: str) -> None:
    """In another process."""
    code = (
        "import sys, leasehold as lh\n"
        "with lh.Hub.open(sys.argv[1]) as hub:\n"
        "    hub.send([lh.EventData(f'{body:>8}') for body in sys.argv[2:]], partition_id=0)"
    )
    subprocess.run([sys.executable, "-c", code, str(path), *bodies], check=True, timeout=60)


def end_of(hub: Hub) -> Checkpoint:
    return hub.position_of(0, "latest")


def read(hub: Hub, position: Checkpoint) -> list[str]:
    return [event.body.decode().strip() for event in hub.read_batch(0, position, 1000).events]


def gone(hub: Hub, position: Checkpoint) -> PositionGone:
    with pytest.raises(PositionGone) as caught:
        hub.read_batch(0, position, 10)
    told = result_of(hub.event_times({"0": position}))["0"]
    assert isinstance(told, PositionGone)
    assert (told.reason, told.shared) == (caught.value.reason, caught.value.shared)
    return caught.value


def copy(path: Path, to: Path) -> None:
    """As a backup is made while the hub is in use."""
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(to)) as copied:
        db.backup(copied)


def restore(copied: Path, path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    shutil.copyfile(copied, path)


def restore_in_place(copied: Path, path: Path) -> None:
    """Into the same file, under those who have it open."""
    with closing(sqlite3.connect(copied)) as db, closing(sqlite3.connect(path)) as restored:
        db.backup(restored)


def test_a_reader_beyond_what_was_lost_is_told_so_also_after_more_was_written(
    tmp_path: Path,
) -> None:
    path, saved = tmp_path / "h.db", tmp_path / "saved.db"
    with make(path) as hub:
        send(hub, *"abcde")
        copy(path, saved)
        send(hub, *"fghij")
        checkpoint = end_of(hub)
    restore(saved, path)
    with Hub.open(path) as hub:
        told = gone(hub, checkpoint)
        assert told.reason == "beyond end"
        assert read(hub, told.resume) == []
        send(hub, *"0123456789")
        told = gone(hub, checkpoint)
        assert told.reason == "rolled back"
        assert told.shared == told.resume == hub.position_of(0, 5)
        assert "power failed" in str(told)
        assert read(hub, told.resume) == list("0123456789")


def test_what_was_read_before_the_loss_is_not_doubted(tmp_path: Path) -> None:
    path, saved = tmp_path / "h.db", tmp_path / "saved.db"
    with make(path) as hub:
        send(hub, *"abcde")
        positions = [hub.position_of(0, n) for n in range(6)]
        copy(path, saved)
        send(hub, *"fghij")
    restore(saved, path)
    with Hub.open(path) as hub:
        send(hub, *"xyz")
        assert [read(hub, each) for each in positions] == [list("abcdexyz")[n:] for n in range(6)]


def test_where_the_histories_part_is_not_known_everything_comes_again(tmp_path: Path) -> None:
    path, saved = tmp_path / "h.db", tmp_path / "saved.db"
    with make(path) as hub:
        send(hub, *"abcde")
        copy(path, saved)
    with Hub.open(path) as hub:
        send(hub, *"fghij")
        checkpoint = end_of(hub)
    restore(saved, path)
    with Hub.open(path) as hub:
        send(hub, *"0123456789")
        told = gone(hub, checkpoint)
        assert (told.reason, told.shared) == ("other feed", None)
        assert "an older copy restored" in str(told)
        assert read(hub, told.resume) == list("abcde0123456789")


def test_a_writer_notices_that_its_file_went_back_under_it(tmp_path: Path) -> None:
    path, saved = tmp_path / "h.db", tmp_path / "saved.db"
    with make(path) as hub, Hub.open(path) as idle:
        send(idle, "0")
        send(hub, *"abcde")
        copy(path, saved)
        send(hub, *"fghij")
        checkpoint = end_of(hub)
        assert read(hub, hub.position_of(0, 6)) == list("fghij")
        restore_in_place(saved, path)
        send(idle, *"01234")
        send(hub, *"56789")
        assert read(hub, hub.position_of(0, 6)) == list("0123456789")
        assert gone(hub, checkpoint).reason == "rolled back"
        assert read(hub, gone(hub, checkpoint).resume) == list("0123456789")


def test_a_reader_under_whom_an_older_copy_is_put_in_place_finds_its_way(tmp_path: Path) -> None:
    """Against all advice. Its connections know another file than those of the writer, which is a
    process of its own."""
    with make(tmp_path / "hub.db") as hub:
        send(hub, "a1", "a2")
    shutil.copyfile(tmp_path / "hub.db", tmp_path / "copy.db")
    send_elsewhere(tmp_path / "hub.db", *[f"b{n}" for n in range(2000)])
    with Hub.open(tmp_path / "hub.db") as reader:
        assert read(reader, Checkpoint(next_sequence=0))[:3] == ["a1", "a2", "b0"]
        position, ends = end_of(reader), result_of(reader.ends())
        restore(tmp_path / "copy.db", tmp_path / "hub.db")
        send_elsewhere(tmp_path / "hub.db", "c1", "c2", "c3")
        with suppress(FeedUnavailable, BadInput):
            result_of(reader.extents())
        assert gone(reader, position).position == position
        assert read(reader, Checkpoint(next_sequence=0)) == ["a1", "a2", "c1", "c2", "c3"]
        assert result_of(reader.ends()) != ends


def test_writers_in_turn_cost_a_few_ordinals_each_and_positions_stay_true(tmp_path: Path) -> None:
    with make(tmp_path / "h.db") as hub, Hub.open(tmp_path / "h.db") as other:
        before = int(end_of(hub).token)
        for _ in range(50):
            send(hub, "a")
            send(other, "b")
        used = (int(end_of(hub).token) - before) / hub_offsets.STEP
        assert used <= 100 * (1 + hub_offsets.SKIPPED_MAX)
        for number in range(101):
            assert len(read(hub, hub.position_of(0, number))) == 100 - number


def test_generations_that_skip_as_many_ordinals_still_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As two writers would that go on from the same restored copy."""
    monkeypatch.setattr(hub_offsets._chance, "randint", lambda least, most: least)
    begun = hub_offsets.begin_generation(7 << hub_offsets.MARK_BITS)
    assert begun != hub_offsets.begin_generation(7 << hub_offsets.MARK_BITS)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("reopen"), st.integers(0, 1)),
        st.tuples(st.just("copy")),
        st.tuples(st.just("restore")),
        st.tuples(st.just("restore_in_place")),
        st.tuples(st.just("trim")),
    ),
    min_size=1,
    max_size=14,
)


class Model:
    """Two writers of one hub, what it should hold, and all positions that readers ever had, each
    with what had been read on the way to it."""

    def __init__(self, folder: Path) -> None:
        self.path, self.saved = folder / "h.db", folder / "saved.db"
        self.writers = [make(self.path), Hub.open(self.path)]
        self.history: list[str] = []
        self.seen: dict[Checkpoint, tuple[str, ...]] = {end_of(self.writers[0]): ()}
        self.sent = 0
        self.copy()

    def send(self, who: int, count: int) -> None:
        bodies = [str(self.sent + n) for n in range(count)]
        self.sent += count
        send(self.writers[who], *bodies)
        for body in bodies:
            self.history.append(body)
            position = self.writers[0].position_of(0, len(self.history))
            self.seen[position] = tuple(self.history)

    def reopen(self, who: int) -> None:
        self.writers[who].close()
        self.writers[who] = Hub.open(self.path)

    def copy(self) -> None:
        copy(self.path, self.saved)
        self.copied = list(self.history)

    def restore(self) -> None:
        self.close()
        restore(self.saved, self.path)
        self.writers = [Hub.open(self.path), Hub.open(self.path)]
        self.history = list(self.copied)

    def restore_in_place(self) -> None:
        restore_in_place(self.saved, self.path)
        self.history = list(self.copied)

    def trim(self) -> None:
        self.writers[0].trim_before(0, len(self.history) - 1)

    def require(self, position: Checkpoint, before: tuple[str, ...]) -> None:
        hub, history = self.writers[1], self.history
        place, first = position.next_sequence, hub.partition_properties(0).first_sequence
        if tuple(history[:place]) == before and place >= first:
            assert read(hub, position) == history[place:]
            return
        told = gone(hub, position)
        common = len(list(takewhile(bool, map(eq, history, before))))
        assert told.resume.next_sequence <= max(first, common)
        assert told.shared is None or told.shared.next_sequence == common
        assert read(hub, told.resume) == history[told.resume.next_sequence :]

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_a_position_is_good_where_its_history_is_the_hubs_and_gone_elsewhere(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    model = Model(tmp_path_factory.mktemp("hub"))
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    for position, before in model.seen.items():
        model.require(position, before)
    model.close()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A hub as the first release of the format wrote it."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript((Path(__file__).with_name("format_1.sql")).read_text())
        db.execute("PRAGMA journal_mode=WAL")
    return path


OLD_OFFSETS = [2443593526, 2443593528, 2443593532, 2443593533, 2443593536]


def test_a_hub_of_format_1_goes_on_with_the_positions_that_its_readers_have(old: Path) -> None:
    bodies = ["a", "bcd", "", "ef"]
    with Hub.open(old) as hub:
        assert (hub.properties().body_bytes, hub.properties().events) == (11, 5)
        send(hub, "new")
        for sequence, offset in enumerate(OLD_OFFSETS):
            position = Checkpoint(next_sequence=sequence, token=str(offset))
            assert hub.position_of(0, sequence) == position
            assert read(hub, position) == [*bodies, "new"][sequence:]
            assert isinstance(result_of(hub.event_times({"0": position}))["0"], float)
            if sequence:
                assert hub.position_of(0, f"offset:{offset}").next_sequence == sequence - 1
        assert hub.read_batch(0, hub.position_of(0, 1), 2).next == hub.position_of(0, 3)
        wrong = Checkpoint(next_sequence=4, token=str(OLD_OFFSETS[4] + 1))
        assert gone(hub, wrong).reason == "other feed"
        hub.trim_before(0, 4)
        assert hub.properties().body_bytes == 8 + 5
    with Hub.open(old) as hub:
        assert read(hub, hub.position_of(0, "earliest")) == ["new"]


def test_what_a_hub_of_format_1_holds_counts_as_new_when_it_is_opened(old: Path) -> None:
    with Hub.open(old) as hub:
        assert hub.trim(max_age_s=3600).events == 0
