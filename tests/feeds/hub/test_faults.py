import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold.core.event import EventData
from leasehold.errors import BadInput, FeedUnavailable, NewerVersion
from leasehold.feeds.container import Container
from leasehold.feeds.hub import Hub
from leasehold.feeds.hub import file as hub_file
from leasehold.local import sqlite as sqlite_file


def make(path: Path) -> Hub:
    return Hub.create(path, name="h", namespace="n", partitions=2)


def test_a_missing_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no hub at .*; make one with Hub.create"):
        Hub.open(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    with make(path) as hub:
        hub.send([EventData(b"x")])
    with pytest.raises(BadInput, match="exists already"):
        make(path)
    with Hub.open(path) as hub:
        assert hub.properties().events == 1
    assert [each.name for each in tmp_path.iterdir()] == ["h.db"]


def test_only_one_of_many_makers_makes_the_hub(tmp_path: Path) -> None:
    path, outcomes = tmp_path / "h.db", []

    def attempt() -> None:
        try:
            outcomes.append(make(path).identity)
        except BadInput:
            outcomes.append(None)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([each for each in outcomes if each]) == 1
    with Hub.open(path) as hub:
        assert hub.identity in outcomes


@pytest.mark.parametrize("content", [b"", b"hello", b"x" * 5000, b"SQLite format 3\0" + b"x" * 500])
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.db"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"foreign\.db"):
        Hub.open(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE hub (a)")
    with pytest.raises(BadInput, match="is not a hub"):
        Hub.open(path)


def test_a_folder_is_no_hub(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        Hub.open(tmp_path)


@pytest.mark.parametrize(
    ("version", "error", "said"),
    [(3, NewerVersion, "format 3; this Leasehold knows 2: upgrade"), (0, BadInput, "format 0")],
)
def test_a_hub_of_another_format_is_refused(
    tmp_path: Path, version: int, error: type[Exception], said: str
) -> None:
    path = tmp_path / "h.db"
    make(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={version}")
    with pytest.raises(error, match=said):
        Hub.open(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_cut_off_file_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "h.db"
    with make(path) as hub:
        for _ in range(50):
            hub.send([EventData(os.urandom(1000))] * 10)
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(BadInput, match=r"h\.db"):
        Hub.open(path)


def test_overwritten_pages_are_reported_as_damage_not_as_events(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    with make(path) as hub:
        for _ in range(50):
            hub.send([EventData(os.urandom(1000))] * 10, partition_id=0)
    with open(path, "r+b") as file:
        file.seek(40_000)
        file.write(b"\xff" * (path.stat().st_size - 60_000))
    with Hub.open(path) as hub, pytest.raises(BadInput, match="damaged"):
        hub.read_arrow(0, 0)


def test_a_damaged_batch_is_reported_with_its_sequences(tmp_path: Path) -> None:
    path = tmp_path / "h.db"
    with make(path) as hub:
        hub.send([EventData(b"x")] * 10, partition_id=0)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE batches SET data = zeroblob(length(data))")
    with Hub.open(path) as hub, pytest.raises(BadInput, match="sequence 0 to 9 are damaged"):
        hub.read_arrow(0, 0)


def test_a_full_disk_is_said_and_nothing_of_the_send_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite_file.Connections._connect

    def with_little_room(self: sqlite_file.Connections) -> sqlite3.Connection:
        db = connect(self)
        db.execute("PRAGMA max_page_count=100")
        return db

    monkeypatch.setattr(sqlite_file.Connections, "_connect", with_little_room)
    hub = make(tmp_path / "h.db")
    sent = _fill(hub)
    assert 0 < sent < 200
    assert [hub.partition_properties(p).events for p in (0, 1)] == [sent * 5, sent * 5]
    assert hub.read_arrow(0, 0).num_rows == sent * 5
    hub.trim(max_bytes=0)
    assert _fill(hub) > 0


def test_a_send_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "h.db") as hub:
        with monkeypatch.context() as patch:
            patch.setitem(hub_file.SQL, "move_end", "UPDATE nothing SET a = ?, b = ?")
            with pytest.raises(sqlite3.OperationalError):
                hub.send_columns(["a", "b"], [b"1", b"2"])
        assert hub.read_arrow(0, 0).num_rows == 0
        hub.send_columns(["a", "b"], [b"1", b"2"])
        assert hub.properties().events == 2


FILL_TO_THE_LIMIT = """
import os, resource, sys
from leasehold.core.event import EventData
from leasehold.errors import FeedUnavailable
from leasehold.feeds.container import Container
from leasehold.feeds.hub import Hub
hub = Hub.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
sent = 0
try:
    while sent < 10_000:
        keys = ["a", "b", "c", "d"] * 5
        hub.send_columns(keys, [os.urandom(1000) for _ in keys])
        sent += 1
except FeedUnavailable as error:
    assert "nothing of this call was stored" in str(error), error
    print(sent, flush=True)
    assert hub.properties().events == sent * 20
"""


def test_a_file_that_cannot_grow_keeps_every_send_that_returned_and_no_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "h.db"
    make(path).close()
    done = subprocess.run(
        [sys.executable, "-c", FILL_TO_THE_LIMIT, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sent = int(done.stdout)
    assert 0 < sent < 10_000
    with Hub.open(path) as hub:
        assert hub.properties().events == sent * 20
        for partition in (0, 1):
            count = hub.partition_properties(partition).events
            assert hub.read_arrow(partition, 0).num_rows == count
        hub.send([EventData(b"x")])


def test_a_busy_file_is_waited_for_and_then_said_to_be_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.2)
    with make(tmp_path / "h.db") as hub, sqlite3.connect(hub.path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(FeedUnavailable, match="kept busy by another process"):
            hub.send([EventData(b"x")])
        assert hub.properties().events == 0
        other.execute("ROLLBACK")
        hub.send([EventData(b"x")])
        assert hub.properties().events == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), "was removed while it was open"),
        (lambda path: (path.unlink(), make(path).close()), "was recreated; open it again"),
        (
            lambda path: (shutil.copy(path, f"{path}.2"), os.replace(f"{path}.2", path)),
            "was recreated",
        ),
    ],
)
def test_a_hub_whose_file_was_replaced_neither_sends_nor_reads(
    tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    hub = make(tmp_path / "h.db")
    hub.send([EventData(b"x")], partition_id=0)
    change(hub.path)
    with pytest.raises(BadInput, match=said):
        hub.send([EventData(b"x")])
    with pytest.raises(BadInput, match=said):
        hub.read_arrow(0, 0)


def test_a_closed_hub_says_so(tmp_path: Path) -> None:
    hub = make(tmp_path / "h.db")
    hub.close()
    with pytest.raises(BadInput, match="was closed; open it again"):
        hub.send([EventData(b"x")])


def test_a_path_with_odd_characters_and_missing_folders_works(tmp_path: Path) -> None:
    path = tmp_path / "a b" / "100%?#ü" / "h.db"
    with make(path) as hub:
        hub.send([EventData(b"x")], partition_id=0)
    with Hub.open(path) as hub:
        assert hub.read_arrow(0, 0).num_rows == 1


def _fill(hub: Hub) -> int:
    """Sends of five events to each of two partitions, until there is no room."""
    keys = ["H1"] * 5 + ["H0"] * 5
    for sent in range(200):
        try:
            hub.send_columns(keys, [os.urandom(500) for _ in keys])
        except FeedUnavailable as error:
            assert "nothing of this call was stored" in str(error)  # noqa: PT017
            return sent
    raise AssertionError("there was always room")


@pytest.mark.parametrize(("fsync", "level"), [(False, 1), (True, 2)])
def test_fsync_asks_sqlite_to_wait_for_the_disk(tmp_path: Path, fsync: bool, level: int) -> None:
    """1 is NORMAL, 2 is FULL; also for one that was handed to another process."""
    with Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=1, fsync=fsync) as hub:
        for each in (hub, pickle.loads(pickle.dumps(hub))):
            with each._file._writing() as db:
                assert db.execute("PRAGMA synchronous").fetchone() == (level,)


@pytest.mark.parametrize(("fsync", "level"), [(False, 1), (True, 2)])
def test_fsync_of_a_container_does_the_same(tmp_path: Path, fsync: bool, level: int) -> None:
    with (
        Container.create(
            tmp_path / "c.db", name="c", namespace="n", partition_key="/k", fsync=fsync
        ) as container,
        container._file._connections.writing() as db,
    ):
        assert db.execute("PRAGMA synchronous").fetchone() == (level,)
