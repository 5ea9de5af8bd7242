from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from activity_rows import NOW, NOW_MINUTE, append, row
from deltalake import DeltaTable
from support.processing import wait_until

from homes.domain.kinds import KINDS
from homes.view.recent_activity import RecentActivity
from homes.view.table import ActivityTable, File, Gone
from leasehold.errors import SinkUnavailable
from leasehold.feeds.keys import partition_of


@pytest.fixture
def url(tmp_path: Path) -> Path:
    return tmp_path / "activity"


def activity_of(url: Path, **more: Any) -> RecentActivity:
    return RecentActivity(ActivityTable(url), clock=lambda: NOW, **more)


def minutes(
    activity: RecentActivity, kind: str = "door", home: str = "H000001"
) -> dict[int, float]:
    """Levels of the last hour, by how many minutes ago."""
    levels = activity.home_state(home).hour.levels[kind]
    return {59 - n: level for n, level in enumerate(levels) if level is not None}


def test_what_a_new_version_adds_is_there_after_the_next_look(url: Path) -> None:
    append(url, row(ago=5))
    activity = activity_of(url)
    activity.catch_up()
    append(url, row(ago=3, value=1.0), row("H000002"))
    append(url, row(ago=3, value=1.0))
    activity.catch_up()
    assert minutes(activity) == {5: 0, 3: 2}
    assert activity.version == 2


def test_only_what_is_new_is_read(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(url, row(ago=5))
    activity = activity_of(url)
    activity.catch_up()
    taken: list[str] = []
    rows = activity.table.rows
    monkeypatch.setattr(
        activity.table, "rows", lambda file: (taken.append(file.path), rows(file))[1]
    )
    append(url, row(ago=1))
    activity.catch_up()
    assert len(taken) == 1


def test_a_table_that_is_not_there_yet_is_waited_for(url: Path) -> None:
    activity = activity_of(url)
    activity.catch_up()
    assert activity.home_state("H000001").state == "silent"
    append(url, row(value=1.0))
    activity.catch_up()
    assert activity.home_state("H000001").state == "open"


def test_compaction_changes_nothing(url: Path) -> None:
    append(url, row(ago=2, value=1.0))
    append(url, row(ago=1, value=1.0))
    activity = activity_of(url)
    activity.catch_up()
    table = DeltaTable(url)
    table.optimize.z_order(["home_id"])
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    append(url, row(ago=0, value=1.0))
    activity.catch_up()
    assert minutes(activity) == {2: 1, 1: 1, 0: 1}
    fresh = activity_of(url)
    fresh.catch_up()
    assert minutes(fresh) == minutes(activity)


def test_rows_that_are_taken_back_vanish(url: Path) -> None:
    append(url, row(ago=2, value=1.0), row(ago=61, value=1.0))
    append(url, row(ago=1, value=1.0))
    activity = activity_of(url)
    activity.catch_up()
    DeltaTable(url).delete(f"minute = {NOW_MINUTE - 2}")
    activity.catch_up()
    assert minutes(activity) == {1: 1}


def test_a_table_made_anew_is_noticed(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homes.view.recent_activity.LOOK_S", 0.0)
    append(url, row(ago=2))
    activity = activity_of(url)
    activity.catch_up()
    for file in sorted(url.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    append(url, row(ago=1))
    activity.catch_up()
    assert minutes(activity) == {1: 0}


def test_a_hole_in_the_log_is_no_reason_to_wait_for_ever(
    url: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homes.view.recent_activity.LOOK_S", 0.0)
    append(url, row(ago=3))
    activity = activity_of(url)
    activity.catch_up()
    append(url, row(ago=2))
    append(url, row(ago=1))
    DeltaTable(url).create_checkpoint()
    (url / "_delta_log" / f"{1:020d}.json").unlink()
    activity.catch_up()
    assert minutes(activity) == {3: 0, 2: 0, 1: 0}


def test_who_asks_before_all_is_in_memory_is_answered_from_the_table(url: Path) -> None:
    homes = [f"H{n:06d}" for n in range(20)]
    for ago in (1500, 700, 130, 65, 20, 0):
        rows = [
            row(home, kind, ago, float(n % 3), partition=str(partition_of(home, 4)))
            for n, home in enumerate(homes)
            for kind in KINDS
        ]
        append(url, *rows)
    loaded, asked = activity_of(url, partitions=4), activity_of(url, partitions=4)
    loaded.catch_up()
    asked._step()  # knows the files, has read none
    assert loaded.loaded
    assert not asked.loaded
    for home in homes:
        assert asked.last_day(home) == loaded.last_day(home)
        assert asked.home_state(home).hour == loaded.home_state(home).hour
        assert asked.home_state(home).readings == loaded.home_state(home).readings
    assert any(loaded.last_day("H000001").levels["motion"])
    append(url, row("H000001", ago=0, value=7.0, partition=str(partition_of("H000001", 4))))
    asked._follow()
    assert asked.home_state("H000001").hour.levels["door"][-1] is not None
    assert len(asked.window) == 1


def test_a_table_too_large_to_search_is_waited_for(
    url: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ago in (600, 300, 0):
        append(url, row(ago=ago, value=1.0))
    monkeypatch.setattr("homes.view.recent_activity.SEARCH_ROWS_MAX", 2)
    activity = activity_of(url)
    activity._step()
    nothing = activity.home_state("H000001")
    assert (nothing.state, nothing.loading, nothing.readings) == ("loading", True, ())
    activity._step()
    newest = activity.home_state("H000001")
    assert (newest.state, newest.loading) == ("open", True)
    assert sum(level is not None for level in activity.last_day("H000001").levels["door"]) == 1
    activity.catch_up()
    assert not activity.home_state("H000001").loading
    assert sum(level is not None for level in activity.last_day("H000001").levels["door"]) == 3


def test_the_newest_hour_is_in_memory_first(url: Path) -> None:
    for ago in (600, 300, 0):
        append(url, row(ago=ago, value=1.0))
    activity = activity_of(url)
    activity._step()
    activity._step()
    assert activity.window.last_hour("H000001").levels["door"][-1] == 1
    assert not any(activity.window.last_day("H000001").levels["door"][:-1])


def test_files_that_cannot_have_the_home_are_not_opened(url: Path) -> None:
    append(url, row("H000001", ago=5, value=1.0, partition="1"))
    append(url, row("H000009", ago=5, partition="1"))  # another home
    append(url, row("H000001", ago=5, partition="2"))  # another partition
    append(url, row("H000001", ago=500, partition="1"))  # too early
    table = ActivityTable(url)
    listing = table.listing()
    assert listing is not None
    ordered = [json.loads(line) for n in range(4) for line in _log(url, n)]
    first, *others = [action["add"]["path"] for action in ordered if "add" in action]
    for path in others:
        (url / path).write_bytes(b"not to be opened")
    near = [f for f in listing.files if f.may_reach("H000001", NOW_MINUTE - 60, "1")]
    found = table.rows_of("H000001", NOW_MINUTE - 60, near)
    assert found["minute"].to_list() == [NOW_MINUTE - 5]
    (url / first).unlink()
    with pytest.raises(Gone):
        table.rows_of("H000001", NOW_MINUTE - 60, near)


def test_a_home_is_found_in_files_that_a_rewind_has_rewritten(url: Path) -> None:
    append(url, row("H000001", ago=5), row("H000009", ago=5), row("H000009", ago=4))
    DeltaTable(url).delete(f"minute = {NOW_MINUTE - 4}")
    table = ActivityTable(url)
    listing = table.listing()
    assert listing is not None
    found = table.rows_of("H000001", NOW_MINUTE - 60, listing.files)
    assert found["minute"].to_list() == [NOW_MINUTE - 5]


def _log(url: Path, version: int) -> list[str]:
    return (url / "_delta_log" / f"{version:020d}.json").read_text().splitlines()


@pytest.mark.parametrize(
    ("rows", "state", "why"),
    [
        ([], "silent", ()),
        ([row(ago=6)], "silent", ()),
        ([row(ago=5)], "quiet", ()),
        ([row(ago=1), row(kind="motion", value=1.0)], "quiet", ()),
        ([row(value=1.0)], "open", ("door",)),
        ([row(ago=3, value=1.0), row(ago=1)], "quiet", ()),
        ([row(kind="window", value=1.0), row(value=1.0)], "open", ("door", "window")),
        (
            [row(kind="glass", value=1.0, ago=14), row(kind="glass"), row(value=1.0)],
            "alarm",
            ("glass",),
        ),
        ([row(kind="glass", value=1.0, ago=15), row(kind="glass")], "quiet", ()),
        ([row(kind="glass", value=1.0, ago=-5), row(kind="glass", ago=-6)], "alarm", ("glass",)),
        ([row(kind="co", value=49.9)], "quiet", ()),
        ([row(kind="co", value=50.0)], "alarm", ("co",)),
        ([row(kind="co", value=90.0, ago=30)], "alarm", ("co",)),
        ([row(kind="co", value=90.0, ago=2), row(kind="co", value=3.0)], "quiet", ()),
    ],
)
def test_a_homes_state_at_a_glance(
    url: Path, rows: list[dict[str, Any]], state: str, why: tuple[str, ...]
) -> None:
    append(url, row("H000002"), *rows)
    activity = activity_of(url)
    activity.catch_up()
    found = activity.home_state("H000001")
    assert (found.state, found.why) == (state, why)


def test_the_thread_follows(url: Path) -> None:
    append(url, row(ago=3))
    with activity_of(url) as activity:
        wait_until(lambda: activity.loaded)
        append(url, row(ago=1))
        wait_until(lambda: minutes(activity) == {3: 0, 1: 0})


def test_a_table_that_cannot_be_read_is_reported_and_tried_again(
    url: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homes.view.recent_activity.RETRY_S", 0.01)
    append(url, row(ago=3))
    log = url / "_delta_log" / f"{0:020d}.json"
    text = log.read_bytes()
    log.write_bytes(b"{")
    with activity_of(url) as activity:
        wait_until(lambda: activity.failing != "")
        log.write_bytes(text)
        wait_until(lambda: minutes(activity) == {3: 0})
        wait_until(lambda: activity.failing == "")


class Shaky(ActivityTable):
    """Every read fails at first; what came before the failure is given out."""

    def __init__(self, url: Path) -> None:
        super().__init__(url)
        self.failed: set[tuple[str, int]] = set()

    def rows(self, file: File) -> Iterator[pl.DataFrame]:
        for piece, rows in enumerate(super().rows(file)):
            if (file.path, piece) not in self.failed:
                self.failed.add((file.path, piece))
                raise SinkUnavailable("the storage does not answer")
            yield rows


def test_reads_that_fail_lose_nothing_and_count_nothing_twice(
    url: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homes.view.table.BATCH_ROWS", 2)
    rows = [row(kind=kind, ago=ago, value=1.0) for kind in KINDS for ago in (0, 1, 62, 300)]
    for _ in range(2):
        append(url, *rows)
    table = Shaky(url)
    kept = url.with_name("window.npz")
    shaky = RecentActivity(table, clock=lambda: NOW, snapshot=kept)
    failures = 0
    for version in (1, 2):
        if version == 2:
            append(url, *rows)  # followed, not loaded
        while shaky.version < version or not shaky.loaded:
            try:
                shaky._step()
            except SinkUnavailable:
                failures += 1
                shaky.save()
    assert failures == len(table.failed) > 20
    steady = activity_of(url)
    steady.catch_up()
    for activity in (shaky, steady):
        assert activity.window.last_day("H000001").levels["door"][-1] == 3
        assert activity.window.last_hour("H000001").levels["door"][-2:] == [3, 3]
    assert shaky.last_day("H000001") == steady.last_day("H000001")
    assert not kept.exists()  # half of a version is not to be gone on from


def test_a_clock_that_is_set_right_again_shows_the_page_again(url: Path) -> None:
    now = NOW
    append(url, row(ago=3))
    activity = RecentActivity(ActivityTable(url), clock=lambda: now)
    activity.catch_up()
    now = NOW + 50 * 3600
    activity.catch_up()
    now = NOW
    append(url, row(ago=1))
    activity.catch_up()
    assert minutes(activity) == {3: 0, 1: 0}


def test_a_battery_that_cannot_be_is_no_trouble(url: Path) -> None:
    append(url, row(battery=1e300), row(kind="motion", battery=-3.0))
    activity = activity_of(url)
    activity.catch_up()
    batteries = {each.kind: each.battery for each in activity.home_state("H000001").readings}
    assert batteries == {"door": 100, "motion": 0}


def test_a_new_start_goes_on_from_what_was_kept(url: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = url.with_name("window.npz")
    append(url, row(ago=500, value=1.0), row(ago=4, value=1.0), row(None, "wrong time"))
    first = activity_of(url, snapshot=kept)
    first.catch_up()
    first.save()
    append(url, row(ago=3, value=1.0), row("H000009", ago=3))
    taken: list[str] = []
    rows = ActivityTable.rows
    monkeypatch.setattr(
        ActivityTable, "rows", lambda self, file: (taken.append(file.path), rows(self, file))[1]
    )
    second = activity_of(url, snapshot=kept)
    second.catch_up()
    assert minutes(second) == {4: 1, 3: 1}
    assert any(second.last_day("H000001").levels["door"][:-4])
    assert second.home_state("H000009").state == "quiet"
    assert second.window.rejected == {"wrong time": 1}
    assert len(taken) == 1  # only what came after it


@pytest.mark.parametrize("damage", ["cut", "empty", "other table", "from the future"])
def test_what_was_kept_is_not_believed_if_it_cannot_be_right(url: Path, damage: str) -> None:
    kept = url.with_name("window.npz")
    append(url, row(ago=4, value=1.0))
    first = activity_of(url, snapshot=kept)
    first.catch_up()
    if damage == "from the future":
        first._version += 5
    first.save()
    if damage == "cut":
        kept.write_bytes(kept.read_bytes()[:1000])
    elif damage == "empty":
        kept.write_bytes(b"")
    elif damage == "other table":
        url = url.with_name("another")
        append(url, row(ago=2))
    second = activity_of(url, snapshot=kept)
    second.catch_up()
    assert minutes(second) == ({2: 0} if damage == "other table" else {4: 1})


def test_a_hole_behind_what_was_kept_means_reading_all_anew(
    url: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("homes.view.recent_activity.LOOK_S", 0.0)
    kept = url.with_name("window.npz")
    append(url, row(ago=4))
    first = activity_of(url, snapshot=kept)
    first.catch_up()
    first.save()
    append(url, row(ago=3))
    append(url, row(ago=2))
    DeltaTable(url).create_checkpoint()
    (url / "_delta_log" / f"{1:020d}.json").unlink()
    second = activity_of(url, snapshot=kept)
    second.catch_up()
    assert minutes(second) == {4: 0, 3: 0, 2: 0}
