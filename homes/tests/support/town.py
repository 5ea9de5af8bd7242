"""A town to look at: the real hub, pipeline, alerts and page."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import leasehold as lh
from homes.local.places import Places
from homes.pipelines.alerts import alerts_processor
from homes.simulator.days import IncidentRates
from homes.simulator.sensors import Sensors
from homes.supervisor.fleet import FleetInstance, FleetNews
from homes.web.secrets import Secrets
from homes.web.serve import open_web
from homes.web.sessions import Sessions

HOMES = 20


class ProcessFleet:
    """Pipeline instances as processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def instances(self) -> Sequence[FleetInstance]:
        return [
            FleetInstance(name, "running" if process.poll() is None else "ended")
            for name, process in self._running.items()
        ]

    def news(self) -> Sequence[FleetNews]:
        return []

    def add(self) -> str:
        name = f"pipeline-{len(self._running) + 1}"
        with (self._folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("pipeline_app.py"), self._folder, name],
                stdout=log,
                stderr=log,
                start_new_session=True,  # its Java ends with it
            )
        return name

    def stop(self, name: str) -> None:
        self._running[name].terminate()

    def kill(self, name: str) -> None:
        process = self._running[name]
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        for name in self._running:
            self.kill(name)


@dataclass
class Town:
    url: str
    hub: lh.Hub
    sessions: Sessions
    fleet: ProcessFleet
    password: str


@contextmanager
def open_town(folder: Path, instances: int = 2) -> Iterator[Town]:
    places = Places(folder)
    secrets = Secrets.load(places.secrets, {})
    with ExitStack() as stack:
        hub = stack.enter_context(
            lh.Hub.create(places.hub, name="sensors", namespace="homes", partitions=4)
        )
        container = stack.enter_context(
            lh.Container.create(
                places.alerts, name="alerts", namespace="homes", partition_key="/home_id"
            )
        )
        fleet = ProcessFleet(folder)
        stack.callback(fleet.close)
        for _ in range(instances):
            fleet.add()
        # Nothing happens but what a test does, whatever the day.
        calm = IncidentRates(break_ins_per_year=0, leaks_per_year=0, silences_per_year=0)
        sensors = stack.enter_context(Sensors(hub, homes=HOMES, rates=calm))
        sensors.backfill(24)
        stop = threading.Event()
        sending = threading.Thread(target=sensors.run, args=(stop,))
        alerts = alerts_processor(
            hub,
            lh.open_store(places.store),
            container,
            dead_letters=lh.open_dead_letters(places.dead_letters),
            instance="alerts-1",
        )
        handling = threading.Thread(target=alerts.run)
        for thread in (sending, handling):
            thread.start()
            stack.callback(thread.join)
        stack.callback(alerts.stop)
        stack.callback(stop.set)
        server = stack.enter_context(open_web(places, secrets, fleet=fleet))
        yield Town(server.url, hub, Sessions(secrets), fleet, secrets.operator_password)
