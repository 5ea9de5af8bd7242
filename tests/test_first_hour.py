"""What a newcomer tries first: it works, or the message says what to write."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from support.command_line import leasehold

import leasehold as lh
from leasehold.core.model import partition_order

SETTINGS: dict[str, Any] = {"name": "sensors", "namespace": "homes.local", "partitions": 2}
OPEN = """
import leasehold as lh
hub = lh.Hub.open_or_create("hub.db", name="sensors", namespace="homes.local", partitions=2)
hub.send("x")
"""


@pytest.fixture
def hub(tmp_path: Path) -> lh.Hub:
    return lh.Hub.create(tmp_path / "hub.db", **SETTINGS)


def bodies(hub: lh.Hub) -> list[bytes]:
    found = [hub.read_arrow(n, 0)["body"].to_pylist() for n in range(2)]
    return sorted(body for part in found for body in part)


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("text", [b"text"]),
        (b"bytes", [b"bytes"]),
        ({"temperature": 21.5}, [b'{"temperature": 21.5}']),
        (["a", b"b", lh.EventData("c"), {"d": 1}], [b"a", b"b", b"c", b'{"d": 1}']),
    ],
)
def test_a_hub_takes_text_bytes_and_mappings(hub: lh.Hub, sent: Any, stored: list[bytes]) -> None:
    hub.send(sent)
    assert bodies(hub) == sorted(stored)


@pytest.mark.parametrize("sent", [[1], [None], {"a": object()}, {"a": float("nan")}])
def test_what_cannot_be_sent_is_answered_with_what_can(hub: lh.Hub, sent: Any) -> None:
    with pytest.raises(lh.BadInput, match="EventData"):
        hub.send(sent)
    assert bodies(hub) == []


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_in_place_of_a_feed_is_answered_with_how_to_open_it(kind: type) -> None:
    feed: Any = kind("data/sensors.db")
    with pytest.raises(lh.BadInput, match=r"give open_feed\(.*data/sensors.db"):
        lh.Processor(feed, group="g", store=lh.open_store("memory://"), on_event=lambda event: None)


def test_a_hub_is_opened_or_created_twice_and_by_two_processes_at_once(tmp_path: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", OPEN], cwd=tmp_path) for _ in range(2)]
    assert [each.wait(timeout=60) for each in running] == [0, 0]
    with lh.Hub.open_or_create(tmp_path / "hub.db", **SETTINGS) as hub:
        assert bodies(hub) == [b"x", b"x"]


def test_another_hub_in_that_file_is_named(tmp_path: Path) -> None:
    lh.Hub.create(tmp_path / "hub.db", **SETTINGS).close()
    with pytest.raises(lh.BadInput, match=r"is the hub homes.local/sensors, not homes.local/doors"):
        lh.Hub.open_or_create(tmp_path / "hub.db", **{**SETTINGS, "name": "doors"})


def test_wrong_settings_of_a_new_hub_are_refused(tmp_path: Path) -> None:
    with pytest.raises(lh.BadInput, match="partitions"):
        lh.Hub.open_or_create(tmp_path / "hub.db", **{**SETTINGS, "partitions": 0})
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_told() -> None:
    version = metadata.version("leasehold")
    assert lh.__version__ == version
    assert leasehold("--version").stdout == f"leasehold {version}\n"


def test_partitions_are_sorted_as_people_count() -> None:
    assert sorted(["10", "b", "2", "a", "1"], key=partition_order) == ["1", "2", "10", "a", "b"]


def test_tables_show_partitions_as_people_count(tmp_path: Path) -> None:
    path, store = tmp_path / "hub.db", f"sqlite:///{tmp_path}/leases.db"
    with lh.Hub.create(path, **{**SETTINGS, "partitions": 11}) as hub:
        lh.Processor(hub, group="g", store=lh.open_store(store), on_event=lambda event: None).run(
            until_drained=True
        )
    shown = json.loads(leasehold("leases", "--store", store, "--json").stdout)
    assert [each["partition"] for each in shown] == [str(n) for n in range(11)]
    page = leasehold("lag", path, "--group", "g", "--store", store).stdout
    assert page.index("│ 2 ") < page.index("│ 10 ")


@pytest.mark.parametrize(
    "words",
    [
        ["leases"],
        ["lag", "hub.db", "--group", "g"],
        ["rewind", "hub.db", "--group", "g", "--to", "earliest"],
        ["dead-letters", "list"],
        ["dead-letters", "show", "abc"],
        ["dead-letters", "purge", "--all"],
    ],
    ids=" ".join,
)
def test_to_look_makes_no_file(tmp_path: Path, words: list[str], hub: lh.Hub) -> None:
    hub.close()
    given = [str(tmp_path / word) if word == "hub.db" else word for word in words]
    before = sorted(tmp_path.iterdir())
    shown = leasehold(*given, "--store", f"sqlite:///{tmp_path}/typo.db", ok=False)
    assert shown.returncode == 1
    assert "there is no file" in shown.stderr
    assert "typo.db" in shown.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_failing_handler_logs_its_traceback_once_with_where_it_was(
    hub: lh.Hub, caplog: pytest.LogCaptureFixture
) -> None:
    hub.send(["good", "bad"], partition_id=1)

    def on_event(event: lh.Event) -> None:
        if event.body == b"bad":
            raise ValueError("no such sensor")

    dead = f"sqlite:///{hub.path.parent}/dead.db"
    with caplog.at_level(logging.WARNING, logger="leasehold"):
        lh.Processor(
            hub,
            group="g",
            store=lh.open_store("memory://"),
            on_event=on_event,
            retry=lh.Retry(attempts=3, backoff_s=0.01, then="dead-letter"),
            dead_letters=lh.open_dead_letters(dead),
        ).run(until_drained=True)
    failed = [each for each in caplog.records if "no such sensor" in each.getMessage()]
    tries = [each for each in failed if ", try " in each.getMessage()]
    assert [each.exc_info is not None for each in tries] == [True] + [False] * (len(tries) - 1)
    assert len(tries) == 3
    assert "partition 1 at sequence 1, try 1 of 3: ValueError" in tries[0].getMessage()
    (row,) = json.loads(leasehold("dead-letters", "list", "--store", dead, "--json").stdout)
    assert row["error"] == "ValueError: no such sensor"
    shown = leasehold("dead-letters", "show", row["id"], "--store", dead).stdout
    assert "Traceback (most recent call last):" in shown
    assert "in on_event" in shown
    assert 'raise ValueError("no such sensor")' in shown


def test_dead_letters_that_nothing_can_use_are_refused_with_the_remedy(hub: lh.Hub) -> None:
    given: dict[str, Any] = {
        "group": "g",
        "store": lh.open_store("memory://"),
        "dead_letters": lh.open_dead_letters("memory://"),
    }
    with pytest.raises(lh.BadInput, match=r'Retry\(then="dead-letter"\)'):
        lh.Processor(hub, on_event=lambda event: None, **given)
    lh.Processor(hub, on_event=lambda event, context: None, **given)
    retry = lh.Retry(then="dead-letter")
    lh.Processor(hub, on_event=lambda event: None, retry=retry, **given)
