"""The official Java client against the endpoint."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.amqp_endpoint import ServedHub
from support.eventhubs_java import command_of, compiled
from support.servers import Azurite

from leasehold import Hub
from leasehold.endpoints.amqp.key_hash import official_partition_of

pytestmark = [pytest.mark.servers, pytest.mark.takes_s(45)]
SOURCE = Path(__file__).parent / "clients" / "Client.java"


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, compiled."""
    return compiled(SOURCE, tmp_path_factory.mktemp("classes"))


def run(classes: Path, served: ServedHub, *words: str, **env: str) -> dict[str, str]:
    done = subprocess.run(
        [*command_of(classes, "Client"), *words],
        env={**os.environ, "CONNECTION": served.connection_string, **env},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = (line.partition("=") for line in done.stdout.splitlines())
    return {name: value for name, _, value in lines}


def test_events_large_and_small_are_sent_and_received_with_all_that_they_carry(
    classes: Path, served: ServedHub
) -> None:
    found = run(classes, served, "flow")
    assert found["partitions"] == "[0, 1, 2, 3]"
    assert (found["body"], found["id"], found["last"]) == ("hello", "m-1 c-1", "0")
    assert (found["text"], found["half"]) == ("x String", "0.5 Double")
    assert (found["int"], found["long"]) == ("7 Integer", "7 Long")
    assert (found["large"], found["ordered"]) == ("900000", "true")
    assert int(found["small"]) > 1000
    with Hub.open(served.path) as hub:
        chosen = str(official_partition_of("home 7", 4))
        last = hub.partition_properties(chosen).last_sequence
        (event,) = hub.read_batch(chosen, hub.position_of(chosen, last), 10).events
    assert (event.body, event.partition_key) == (b"keyed", "home 7")


def test_two_of_its_processors_share_the_partitions_by_checkpoints_in_blob_storage(
    classes: Path, served: ServedHub, azurite: Azurite
) -> None:
    with Hub.open(served.path) as hub:
        for n in range(40):
            hub.send_columns(None, [b"shared"], partition_id=n % 4)
        total = hub.properties().events
    found = run(classes, served, "process", str(total), STORAGE=azurite.connection_string)
    assert (found["complete"], found["seen"]) == ("true", str(total))
