"""What the application keeps is for its own user: others on the machine cannot read it, hold its
locks or see its secrets. Where the tests run as root, another user tries."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from homes_command import run_homes
from support.processing import wait_until

import leasehold as lh
from homes.local.lock import Lock
from homes.local.places import Places
from homes.local.private_folder import private_folder
from homes.supervisor.data_folder import prepare
from homes.supervisor.fleet import Fleet
from homes.supervisor.part_config import PartConfig
from leasehold.errors import BadInput

NOBODY = 65534
WEBHOOK = "http://127.0.0.1:9/a-secret-path"
SECRET = "a secret that only tests know"


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that everybody can enter, as a home directory often is; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def wide(open_place: Path) -> Path:
    """As an earlier version left it."""
    folder = open_place / "data"
    folder.mkdir(mode=0o755)
    (folder / "logs").mkdir(mode=0o755)
    for name in ("sensors.db", "demo.lock", "logs/alerts.log"):
        (folder / name).write_text("content")
        (folder / name).chmod(0o644)
    return folder


def others_can(*command: str | Path) -> bool:
    """Whether another user can run it with success."""
    if os.geteuid() != 0:
        return False  # only root can become another; the modes are looked at all the same
    done = subprocess.run(
        command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False
    )
    return done.returncode == 0


def open_to_others(folder: Path) -> list[str]:
    found = [folder, *folder.rglob("*")]
    return [str(each) for each in found if each.lstat().st_mode & 0o077]


def test_a_folder_that_others_could_read_is_closed_with_all_that_is_in_it(wide: Path) -> None:
    told: list[str] = []
    root = os.geteuid() == 0
    assert others_can("cat", wide / "logs" / "alerts.log") == root
    assert others_can("flock", "-n", wide / "demo.lock", "true") == root
    private_folder(wide, told.append)
    assert open_to_others(wide) == []
    assert not others_can("cat", wide / "sensors.db")
    assert not others_can("flock", "-n", wide / "demo.lock", "true")
    assert len(told) == 1
    private_folder(wide, told.append)
    assert len(told) == 1


def test_a_new_folder_is_private_and_an_impossible_one_refused(tmp_path: Path) -> None:
    private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="nothing can be kept in"):
        private_folder(tmp_path / "file")


def test_a_lock_is_nobody_elses_to_hold(open_place: Path) -> None:
    path = open_place / "x.lock"
    path.touch(0o666)
    path.chmod(0o666)
    with Lock(path, "busy"):
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not others_can("flock", "-n", path, "true")


def test_commands_leave_nothing_that_others_can_read(wide: Path) -> None:
    places = Places(wide)
    places.hub.unlink()
    lh.Hub.create(places.hub, name="sensors", namespace="homes", partitions=1).close()
    run_homes("simulate", places.hub, "--homes", 5, "--speed", "max", "--minutes", 1)
    done = run_homes("codes", "revoke", wide, "H000001")
    assert "could be read by others" in done.stderr
    assert open_to_others(wide) == []
    assert {"web-codes.json", "audit.jsonl", "web-secrets.json"} <= {
        each.name for each in wide.iterdir()
    }


def test_processes_show_no_secret_and_leave_nothing_open(open_place: Path) -> None:
    before = os.umask(0o022)  # theirs is what counts
    try:
        config = PartConfig(
            part="",
            instance="",
            folder=str(open_place / "data"),
            homes=5,
            webhook=WEBHOOK,
            webhook_secret=SECRET,
        )
        prepare(config.places)
        fleet = Fleet(config)
    finally:
        os.umask(before)
    try:
        fleet.start_part("alerts")
        (part,) = fleet._others.values()
        wait_until(lambda: b"joins" in part.log.read_bytes())
        process = Path("/proc") / str(part.popen.pid)
        command = (process / "cmdline").read_bytes()
        assert b"homes.supervisor.run_part\0alerts\0" in command
        assert b"a-secret-path" not in command
        assert SECRET.encode() not in command
        assert not others_can("cat", process / "environ")
    finally:
        fleet.close()
    assert open_to_others(open_place / "data") == []
    assert not others_can("ls", open_place / "data")
    assert not others_can("cat", open_place / "data" / "alerts.db")
