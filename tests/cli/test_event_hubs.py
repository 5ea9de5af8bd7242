"""The commands on an event hub elsewhere, which is named by its URL."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.blocking import result_of
from support.eventhubs import KEY, Endpoint, endpoint

import leasehold as lh
from leasehold import cli


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with endpoint(tmp_path / "sensors.db") as made:
        monkeypatch.setenv("AZURE_EVENTHUBS_CONNECTION_STRING", made.connection_string)
        yield made


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line in this process: its output, and that it ended as it should."""

    def run(*words: object, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["leasehold", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert (ended.value.code or 0) == code, said.out + said.err
        assert KEY not in said.out + said.err
        return said.out if not code else said.err

    return run


def test_a_hub_by_url_is_sent_to_read_and_looked_at(
    served: Endpoint, run: Any, tmp_path: Path
) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(json.dumps({"home": f"H{n % 5}", "n": n}) + "\n" for n in range(20)))
    assert "sent 20 events" in run(
        "hub", "send", served.url, "--file", lines, "--key-field", "home"
    )
    assert json.loads(run("hub", "send", served.url, "door", "--partition", "2", "--json")) == {
        "events": 1,
        "partitions": {},
    }
    info = json.loads(run("hub", "info", served.url, "--json"))
    assert (info["namespace"], info["name"], info["events"]) == (
        f"localhost:{served.port}",
        "sensors",
        21,
    )
    assert f"localhost:{served.port}/sensors" in run("hub", "info", served.url)
    events = [json.loads(line) for line in run("hub", "read", served.url, "--json").splitlines()]
    assert len(events) == 21
    by_home: dict[str, set[str]] = {}
    for event in events:
        if event["partition_key"]:
            assert json.loads(event["body"])["home"] == event["partition_key"]
            by_home.setdefault(event["partition_key"], set()).add(event["partition"])
    assert {key: len(partitions) for key, partitions in by_home.items()} == {
        f"H{n}": 1 for n in range(5)
    }
    last = run("hub", "read", served.url, "--partition", "2", "--max", "1", "--from", "latest")
    assert last == ""
    nowhere = f"eventhubs://localhost:{served.port}/nowhere"
    assert "no such hub" in run("hub", "info", nowhere, code=2)
    assert "'fsync'" in run("hub", "send", served.url, "x", "--fsync", code=2)


def test_lag_rewind_and_redrive_take_the_url(served: Endpoint, run: Any, tmp_path: Path) -> None:
    served.hub.send_columns(["H1"] * 6, [b"%d" % n for n in range(6)])
    store, letters = f"sqlite:///{tmp_path}/leases.db", f"sqlite:///{tmp_path}/dead.db"
    group = ("--group", "alerts", "--store", store)

    def fail_on_three(event: lh.Event) -> None:
        if event.body == b"3":
            raise ValueError("no such sensor")

    feed = lh.open_feed(served.url)
    lh.Processor(
        feed,
        group="alerts",
        store=lh.open_store(store),
        on_event=fail_on_three,
        retry=lh.Retry(attempts=1, then="dead-letter", backoff_s=0),
        dead_letters=lh.open_dead_letters(letters),
    ).run(until_drained=True)
    feed.close()
    assert json.loads(run("lag", served.url, *group, "--json"))["lag_events"] == 0
    assert "moved to earliest" in run("rewind", served.url, *group, "--to", "earliest", "--yes")
    assert json.loads(run("lag", served.url, *group, "--json"))["lag_events"] == 6
    redriven = run("dead-letters", "redrive", "--all", "--store", letters, "--hub", served.url)
    assert f"sent 1 dead letter back to localhost:{served.port}/sensors" in redriven
    (extent,) = [each for each in result_of(served.hub.extents()) if each.end]
    batch = served.hub.read_batch(extent.partition, lh.Checkpoint(next_sequence=6), 9)
    assert [(event.body, event.partition_key) for event in batch.events] == [(b"3", "H1")]
    assert batch.events[0].properties["leasehold-redrives"] == 1
    asyncio.run(lh.open_store(store).close())
