import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold.errors import BadInput, FeedUnavailable, NewerVersion
from leasehold.feeds.container import Container
from leasehold.feeds.container import container as container_module
from leasehold.feeds.container import ranges as container_ranges
from leasehold.feeds.hub import Hub
from leasehold.local import sqlite as sqlite_file


def make(path: Path, **settings: Any) -> Container:
    return Container.create(path, name="c", namespace="n", partition_key="/key", **settings)


def put(container: Container, id: str, size: int = 10) -> dict[str, Any]:
    return container.upsert({"id": id, "key": "k", "text": os.urandom(size // 2).hex()})


def test_a_missing_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no container at .*; make one with Container.create"):
        Container.open(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with make(path) as container:
        stored = put(container, "a")
    with pytest.raises(BadInput, match="exists already"):
        make(path)
    with Container.open(path) as container:
        assert container.read("a", "k") == stored
    assert [each.name for each in tmp_path.iterdir()] == ["c.db"]


@pytest.mark.parametrize("content", [b"", b"hello", b"x" * 5000, b"SQLite format 3\0" + b"x" * 500])
def test_a_foreign_file_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.db"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"foreign\.db"):
        Container.open(path)
    assert path.read_bytes() == content


def test_a_hub_is_no_container_and_a_container_no_hub(tmp_path: Path) -> None:
    Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=1).close()
    make(tmp_path / "c.db").close()
    with pytest.raises(BadInput, match=r"is not a container; make one with Container\.create"):
        Container.open(tmp_path / "h.db")
    with pytest.raises(BadInput, match=r"is not a hub; make one with Hub\.create"):
        Hub.open(tmp_path / "c.db")


@pytest.mark.parametrize(
    ("version", "error", "said"),
    [(4, NewerVersion, "format 4; this Leasehold knows 3: upgrade"), (0, BadInput, "format 0")],
)
def test_a_container_of_another_format_is_refused(
    tmp_path: Path, version: int, error: type[Exception], said: str
) -> None:
    path = tmp_path / "c.db"
    make(path).close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={version}")
    with pytest.raises(error, match=said):
        Container.open(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_cut_off_file_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "c.db"
    with make(path) as container:
        for n in range(50):
            put(container, str(n), 10_000)
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(BadInput, match=r"c\.db"):
        Container.open(path)


def test_overwritten_pages_are_reported_as_damage_not_as_documents(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with make(path, ranges=1) as container:
        for n in range(50):
            put(container, str(n), 10_000)
    with open(path, "r+b") as file:
        file.seek(60_000)
        file.write(b"\xff" * (path.stat().st_size - 80_000))
    with Container.open(path) as container, pytest.raises(BadInput, match="damaged"):
        container.changes("0", max_items=1000)


def test_a_write_that_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "c.db") as container:
        put(container, "a")
        with monkeypatch.context() as patch:
            patch.setitem(container_ranges.SQL, "move_range", "UPDATE nothing SET a = ?, b = ?")
            with pytest.raises(sqlite3.OperationalError):
                container.upsert_many([{"id": "b", "key": "k"}, {"id": "c", "key": "k"}])
            with pytest.raises(sqlite3.OperationalError):
                container.delete("a", "k")
        assert [document["id"] for document in container.list("k")] == ["a"]
        assert container.properties().next_lsn == 2
        assert put(container, "b")["_lsn"] == 2


def test_a_split_that_fails_half_way_leaves_the_range_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "c.db", ranges=1) as container:
        put(container, "a")
        with monkeypatch.context() as patch:
            patch.setitem(container_ranges.SQL, "new_layout", "UPDATE nothing SET a = 1")
            with pytest.raises(sqlite3.OperationalError):
                container.split("0")
        assert [(each.id, each.split) for each in container.ranges()] == [("0", False)]
        put(container, "b")
        container.split("0")
        put(container, "c")
        assert container.properties().documents == 3


FILL_TO_THE_LIMIT = """
import os, resource, sys
from leasehold.errors import FeedUnavailable
from leasehold.feeds.container import Container
container = Container.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
written = 0
try:
    while written < 10_000:
        new = {"key": "k", "text": os.urandom(500).hex()}
        container.upsert_many(new | {"id": f"{written}-{n}"} for n in range(20))
        written += 1
except FeedUnavailable as error:
    assert "nothing of this call was stored" in str(error), error
    print(written, flush=True)
    assert container.properties().documents == written * 20
"""


def test_a_file_that_cannot_grow_keeps_every_write_that_returned_and_no_other(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.db"
    make(path, ranges=1).close()
    done = subprocess.run(
        [sys.executable, "-c", FILL_TO_THE_LIMIT, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    written = int(done.stdout)
    assert 0 < written < 10_000
    with Container.open(path) as container:
        assert container.properties().documents == written * 20
        assert len(container.changes("0", max_items=10**6).changes) == written * 20
        put(container, "more")


def test_upkeep_that_fails_does_not_fail_the_write_that_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise FeedUnavailable("no room")

    monkeypatch.setattr(container_module, "UPKEEP_INTERVAL_S", 0.0)
    monkeypatch.setattr(Container, "_clean", no_room)
    with make(tmp_path / "c.db") as container:
        stored = put(container, "a")
        assert container.read("a", "k") == stored


def test_a_busy_file_is_waited_for_and_then_said_to_be_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "BUSY_TIMEOUT_S", 0.2)
    with (
        make(tmp_path / "c.db") as container,
        sqlite3.connect(container.path, isolation_level=None) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(FeedUnavailable, match=r"the container .* kept busy by another process"):
            put(container, "a")
        assert container.changes("0").changes == ()
        other.execute("ROLLBACK")
        put(container, "a")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), "the container .* was removed while it was open"),
        (lambda path: (path.unlink(), make(path).close()), "was recreated; open it again"),
        (
            lambda path: (shutil.copy(path, f"{path}.2"), os.replace(f"{path}.2", path)),
            "was recreated",
        ),
    ],
)
def test_a_container_whose_file_was_replaced_neither_writes_nor_reads(
    tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    container = make(tmp_path / "c.db")
    put(container, "a")
    change(container.path)
    for call in (lambda: put(container, "b"), lambda: container.changes("0")):
        with pytest.raises(BadInput, match=said):
            call()


def test_a_closed_container_says_so(tmp_path: Path) -> None:
    container = make(tmp_path / "c.db")
    container.close()
    with pytest.raises(BadInput, match="was closed; open it again"):
        put(container, "a")


def test_a_path_with_odd_characters_and_missing_folders_works(tmp_path: Path) -> None:
    path = tmp_path / "a b" / "100%?#ü" / "c.db"
    with make(path) as container:
        stored = put(container, "a")
    with Container.open(path) as container:
        assert container.read("a", "k") == stored


def test_only_one_of_many_makers_makes_the_container(tmp_path: Path) -> None:
    path, outcomes = tmp_path / "c.db", []

    def attempt() -> None:
        try:
            outcomes.append(make(path).identity)
        except BadInput:
            outcomes.append(None)

    threads = [threading.Thread(target=attempt) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([each for each in outcomes if each]) == 1
