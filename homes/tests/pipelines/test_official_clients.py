"""The application with parts that are none of ours: sensors that send with Azure's SDK for Python,
an alert processor of Azure's JavaScript clients. Hub, container and webhook unit are ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.eventhub import EventData, EventHubProducerClient
from support.cosmos import Served, serving
from support.eventhubs import Endpoint, endpoint
from support.processing import FAST, open_leases, running, until
from support.servers import TOOLS, Azurite

import leasehold as lh
from homes.pipelines.alerts import CO_PPM, alerts_processor
from homes.pipelines.notify import notify_unit
from homes.pipelines.webhook_receiver import Receiver
from homes.simulator.days import IncidentRates
from homes.simulator.sensors import Sensors, add_co_detectors

pytestmark = pytest.mark.servers
SECRET = "a secret that only tests know"
NOON = 1_779_105_600.0
"""On a Monday, when nobody is at home: glass breaks. Incidents depend on nothing but the time."""
SCRIPT = Path(__file__).parents[1] / "support" / "alerts.mjs"


class OfficialSensors:
    """A ``Sender`` that is Azure's producer and nothing else."""

    name, identity = "sensors", "sensors of the official SDK"

    def __init__(self, client: EventHubProducerClient) -> None:
        self._client = client

    def send_columns(self, keys: Any, bodies: Any, properties: Any = None) -> Sequence[Any]:
        by_home: dict[str, list[EventData]] = {}
        for home, body in zip(keys.to_pylist(), bodies.to_pylist(), strict=True):
            by_home.setdefault(home, []).append(EventData(body))
        for home, readings in by_home.items():
            self._client.send_batch(readings, partition_key=home)
        return ()


def send_a_bad_day(served: Endpoint, beside: Path) -> int:
    """Of some homes, with all kinds of sensors. How many readings there were."""
    client = EventHubProducerClient.from_connection_string(
        served.connection_string, eventhub_name="sensors"
    )
    sender: Any = OfficialSensors(client)
    add_co_detectors(beside, sender.identity)
    rates = IncidentRates(break_ins_per_year=8760, leaks_per_year=8760)
    options: dict[str, Any] = {"homes": 60, "speed": "max", "rates": rates, "wall": lambda: NOON}
    with client, Sensors(sender, beside=beside, **options) as sensors:
        return sensors.run(minutes=10)


@contextmanager
def javascript(served: Endpoint, cosmos: Served, azurite: Azurite, log: Path) -> Iterator[None]:
    environment = {
        "EVENTHUBS": f"{served.connection_string};EntityPath=sensors",
        "EVENTHUBS_MODULES": str(TOOLS / "eventhubs-js" / "x.js"),
        "COSMOS_MODULES": str(TOOLS / "cosmos-js" / "x.js"),
        "COSMOS": cosmos.url,
        "COSMOS_KEY": cosmos.key,
        "STORAGE": azurite.connection_string,
        "CONTAINER": f"alerts-{uuid4().hex[:8]}",
        "CO_PPM": str(CO_PPM),
    }
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [TOOLS / "bin" / "node", SCRIPT], env={**os.environ, **environment}, stderr=output
        ) as process,
    ):
        try:
            yield
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def documents(container: lh.Container) -> dict[str, Any]:
    """By id, without the system fields."""
    changes = [
        change.document
        for each in container.ranges()
        for change in container.changes(each.id, max_items=100_000).changes
    ]
    return {
        document["id"]: {name: value for name, value in document.items() if name[0] != "_"}
        for document in changes
    }


def expected(served: Endpoint, folder: Path) -> dict[str, Any]:
    """The alerts that our own processor finds in the same hub."""
    path = folder / "ours.db"
    with (
        lh.Container.create(
            path, name="ours", namespace="homes", partition_key="/home_id"
        ) as container,
        lh.Hub.open(served.path) as hub,
    ):
        letters = lh.open_dead_letters(f"sqlite:///{folder}/dead.db")
        store = open_leases(folder)
        alerts_processor(hub, store, container, dead_letters=letters, **FAST).run(
            until_drained=True
        )
        return documents(container)


def test_alerts_of_an_official_processor_are_those_of_ours_and_reach_the_webhook(
    tmp_path: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_WEBHOOK_SECRET", SECRET)
    with endpoint(tmp_path / "sensors.db") as served, serving(tmp_path) as cosmos:
        sent = send_a_bad_day(served, tmp_path / "state")
        assert served.hub.properties().events == sent
        wanted = expected(served, tmp_path)
        assert {alert["type"] for alert in wanted.values()} == {"glass", "co"}
        cosmos.ask("POST", "dbs", {"id": "homes"})
        keyed = {"id": "alerts", "partitionKey": {"paths": ["/home_id"], "kind": "Hash"}}
        cosmos.ask("POST", "dbs/homes/colls", keyed)
        alerts = cosmos.container("homes", "alerts")
        letters = lh.open_dead_letters(f"sqlite:///{tmp_path}/notify.db")
        with Receiver(secret=SECRET) as webhook:
            unit = notify_unit(
                alerts, open_leases(tmp_path), webhook.url, dead_letters=letters, **FAST
            )

            async def until_told() -> None:
                async with running(unit):
                    await until(lambda: webhook.count >= len(wanted))

            with javascript(served, cosmos, azurite, tmp_path / "node.err"):
                asyncio.run(until_told())
        assert documents(alerts) == wanted
        assert webhook.ids == wanted.keys()
