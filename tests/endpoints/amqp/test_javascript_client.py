"""The official JavaScript client against the endpoint."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.amqp_endpoint import ServedHub, served_hub
from support.servers import TOOLS, Azurite

from leasehold import Hub
from leasehold.endpoints.amqp.key_hash import official_partition_of

pytestmark = pytest.mark.servers
SCRIPT = Path(__file__).parent / "clients" / "client.js"
MODULES = TOOLS / "eventhubs-js" / "node_modules"


def javascript(served: ServedHub, *commands: tuple[str, dict[str, Any]]) -> list[Any]:
    """The answers of several commands, in one process: starting it takes longest."""
    assert MODULES.exists(), f"{MODULES} is missing: `make test` sets it up"
    try:
        done = subprocess.run(
            [TOOLS / "bin" / "node", SCRIPT, json.dumps(commands)],
            env={
                **os.environ,
                "NODE_PATH": str(MODULES),
                "CONNECTION": served.connection_string,
            },
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"it did not end; it printed: {late.stdout!r:.4000} {late.stderr!r:.4000}")
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_events_are_sent_and_received_with_all_that_they_carry(served: ServedHub) -> None:
    event = {
        "body": "hello",
        "messageId": "m-1",
        "contentType": "text/plain",
        "properties": {"text": "x", "whole": 7, "half": 0.5, "yes": True},
    }
    about, received, by_key, from_one = javascript(
        served,
        ("send", {"events": [event, {"body": {"a": 1}}], "partitionId": "1"}),
        ("receive", {"count": 2, "partitionId": "1"}),
        ("send", {"events": [{"body": "keyed"}], "partitionKey": "home 7"}),
        (
            "receive",
            {
                "count": 1,
                "partitionId": "1",
                "position": {"sequenceNumber": 1, "isInclusive": True},
                "ownerLevel": 3,
            },
        ),
    )
    assert about["partitionIds"] == ["0", "1", "2", "3"]
    assert by_key["name"] == "sensors"
    first, second = received["events"]
    assert {name: first[name] for name in event} == event
    assert second["body"] == {"a": 1}
    assert (first["sequence"], second["sequence"]) == (0, 1)
    assert received["last"]["sequenceNumber"] == 1
    assert from_one["events"][0]["sequence"] == 1
    with Hub.open(served.path) as hub:
        chosen = str(official_partition_of("home 7", 4))
        events = hub.read_batch(chosen, hub.position_of(chosen, "earliest"), 10).events
    assert [event.body for event in events if event.partition_key == "home 7"] == [b'"keyed"']


def test_its_buffered_producer_and_the_endpoint_put_a_key_into_the_same_partition(
    served: ServedHub,
) -> None:
    keys = [f"key-{n}" for n in range(40)] + ["Zürich", "東京", "long key " * 9]
    (answer,) = javascript(served, ("buffered", {"keys": keys}))
    assert answer == {"failed": []}
    with Hub.open(served.path) as hub:
        found = {
            event.body.decode().strip('"'): event.partition
            for partition in hub.partition_ids
            for event in hub.read_batch(
                partition, hub.position_of(partition, "earliest"), 1000
            ).events
        }
    assert {key: found.get(key) for key in keys} == {
        key: str(official_partition_of(key, 4)) for key in keys
    }


def test_large_events_and_many_small_ones_arrive_complete(served: ServedHub) -> None:
    with Hub.open(served.path) as hub:
        begin = hub.partition_properties("2").next_sequence
    at = {"sequenceNumber": begin, "isInclusive": True}
    _, large, _, small = javascript(
        served,
        ("fill", {"partitionId": "2", "count": 3, "bytes": 900_000}),
        ("receive", {"count": 3, "partitionId": "2", "position": at}),
        ("fill", {"partitionId": "2", "count": 5_000, "bytes": 100}),
        ("receive", {"count": 5_003, "partitionId": "2", "position": at, "brief": True}),
    )
    assert [event["size"] for event in large["events"]] == [900_000] * 3
    assert small["events"] == 5_003


def test_two_of_its_processors_share_the_partitions_by_checkpoints_in_blob_storage(
    tmp_path: Path, azurite: Azurite
) -> None:
    bodies = sorted(f"shared {n}" for n in range(40))
    with served_hub(tmp_path) as served:
        with Hub.open(served.path) as hub:
            for n, body in enumerate(bodies):
                hub.send_columns(None, [body.encode()], partition_id=n % 4)
        storage = {"container": "js-processors", "storage": azurite.connection_string}
        (answer,) = javascript(served, ("process", {"count": len(bodies), **storage}))
    assert sorted(answer["bodies"]) == bodies
