"""The webhook is down for long, in every way there is; every alert arrives in the end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from application import account, wait_for

import leasehold as lh
from homes.pipelines.archive import read_archive
from homes.pipelines.webhook_receiver import Receiver
from homes.simulator.sensors import send_reading
from homes.supervisor.data_folder import prepare
from homes.supervisor.fleet import Fleet
from homes.supervisor.part_config import PartConfig

OUTAGE_S = float(os.environ.get("LEASEHOLD_OUTAGE_S", "9"))
pytestmark = pytest.mark.timeout(600 + 2 * OUTAGE_S)


@contextmanager
def gone(port: int) -> Iterator[None]:
    """Nobody is there."""
    yield


@contextmanager
def deaf(port: int) -> Iterator[None]:
    """Somebody is there and never says a word."""
    with socket.create_server(("127.0.0.1", port), backlog=64) as server:
        kept = []

        def accept() -> None:
            with suppress(OSError):
                while True:
                    kept.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield
        server.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


@contextmanager
def failing(port: int) -> Iterator[None]:
    with Receiver(port, secret=SECRET) as receiver:
        receiver.status = 500
        yield


SECRET = "a secret that only tests know"
OUTAGES = {gone: "ConnectionRefusedError", deaf: "TimeoutError", failing: "it answered 500"}


def test_alerts_wait_for_a_webhook_and_hold_nobody_else_up(tmp_path: Path, port: int) -> None:
    config = PartConfig(
        part="",
        instance="",
        folder=str(tmp_path),
        homes=60,
        webhook=f"http://127.0.0.1:{port}/alerts",
        webhook_secret=SECRET,
    )
    prepare(config.places)
    fleet = Fleet(config)
    try:
        fleet.start_part("alerts")
        with lh.Hub.open(config.places.hub) as hub:
            homes = 0
            for outage, said_of_it in OUTAGES.items():
                began = time.monotonic()
                with outage(port):
                    while time.monotonic() < began + OUTAGE_S / 3 or said_of_it not in log(config):
                        assert time.monotonic() < began + OUTAGE_S + 60, f"no {said_of_it}"
                        send_reading(hub, homes, "glass", 1)
                        homes += 1
                        wait_for(partial(is_archived, config, homes), "the archive")
                        time.sleep(OUTAGE_S / 30)
            assert account(tmp_path).lags["notify"] == homes
            with Receiver(port, secret=SECRET) as receiver:
                wait_for(lambda: receiver.count == homes, "all alerts")
                wait_for(lambda: not account(tmp_path).lags["notify"], "the unit")
    finally:
        fleet.close()
    now = account(tmp_path)
    assert now.letters == {}
    assert (now.lags["alerts"], now.lags["archive"]) == (0, 0)


def is_archived(config: PartConfig, alerts: int) -> bool:
    return len(read_archive(str(config.places.archive))) == alerts


def log(config: PartConfig) -> str:
    return (config.places.folder / "logs" / "alerts.log").read_text()
