"""The parts of the application that run as processes of their own: ``python -m
leasehold.homes.parts SAID``, which is JSON. They end in good order on SIGTERM, and with whoever
started them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leasehold.errors import BadInput
from leasehold.feeds.container import Container
from leasehold.feeds.hub import Hub
from leasehold.homes.patient_log import PatientLog
from leasehold.homes.places import Places
from leasehold.homes.readings import HOME_ID
from leasehold.stores import open_dead_letters, open_store

LEASES: dict[str, Any] = {"lease_ttl_s": 6.0, "balance_interval_s": 2.0}
"""Quick enough to watch, slow enough for a machine that is busy."""
PARTITIONS = 16
RETENTION_BYTES = 4 << 30
"""Not by time: what nobody has read yet must not go because the application stood still."""
FAST_S = 365 * 86_400.0
"""How far ahead the sensors' clock may be if they ever ran faster than real time."""
log = logging.getLogger("leasehold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a part is told."""

    part: str
    folder: str
    instance: str
    homes: int
    starter: int = 0
    """The process that started it."""
    speed: str = "1"
    history_hours: float = 0.0
    seed: int = 1
    webhook: str = ""
    malformed: float = 0.0
    unknown: float = 0.0
    wrong_time: float = 0.0

    @property
    def places(self) -> Places:
        return Places(Path(self.folder))

    def has(self, home: str) -> bool:
        """Whether there is such a home."""
        return HOME_ID.fullmatch(home) is not None and int(home[1:]) < self.homes

    def text(self) -> str:
        return json.dumps(asdict(self))


def prepare(places: Places) -> None:
    """Hub and container, if this is the first time."""
    try:
        places.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"nothing can be kept in {places.folder}: {error.strerror}; choose a folder that you "
            "may write to"
        ) from error
    if not places.hub.exists():
        Hub.create(
            places.hub,
            name="sensors",
            namespace="homes.local",
            partitions=PARTITIONS,
            retention_bytes=RETENTION_BYTES,
        ).close()
    if not places.alerts.exists():
        Container.create(
            places.alerts, name="alerts", namespace="homes.local", partition_key="/home_id"
        ).close()


def pipeline(said: Said) -> None:
    """One Spark application of the group ``activity``."""
    from leasehold.homes.activity import activity_processor, activity_sink  # noqa: PLC0415
    from leasehold.spark import local_session  # noqa: PLC0415

    places = said.places
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.local.dir": str(places.folder / "spark"),
    }
    spark = local_session(1, name=said.instance, settings=settings)
    spark.sparkContext.setLogLevel("ERROR")
    if said.speed != "1":
        places.fast.touch()
    ahead = {"ahead_s": FAST_S} if places.fast.exists() else {}
    activity_processor(
        spark,
        Hub.open(places.hub),
        open_store(places.store),
        activity_sink(places.activity),
        open_dead_letters(places.dead_letters),
        homes=said.homes,
        instance=said.instance,
        gather_s=0.3,
        **ahead,
        **LEASES,
    ).run()


def alerts(said: Said) -> None:
    """The group ``alerts`` and both units of its change feed."""
    from leasehold.homes.alerts import alerts_processor  # noqa: PLC0415
    from leasehold.homes.archive import archive_unit  # noqa: PLC0415
    from leasehold.homes.notify import notify_unit  # noqa: PLC0415

    places = said.places
    hub, container = Hub.open(places.hub), Container.open(places.alerts)
    letters = open_dead_letters(places.dead_letters)
    settings = {"instance": said.instance, **LEASES}

    async def run() -> None:
        await asyncio.gather(
            alerts_processor(
                hub,
                open_store(places.store),
                container,
                dead_letters=letters,
                known=said.has,
                **settings,
            ).run_async(),
            notify_unit(
                container,
                open_store(places.store),
                said.webhook,
                dead_letters=letters,
                **settings,
            ).run_async(),
            archive_unit(
                container, open_store(places.store), str(places.archive), **settings
            ).run_async(),
        )

    asyncio.run(run())


def sensors(said: Said) -> None:
    """The homes themselves: history on the first start, then on and on."""
    from leasehold.homes.flaws import Flaws  # noqa: PLC0415
    from leasehold.homes.sensors import Sensors, parse_speed  # noqa: PLC0415

    stop = threading.Event()
    # Not in the handler itself: this thread may hold the event's lock.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop.set).start())
    with (
        Hub.open(said.places.hub) as hub,
        Sensors(
            hub,
            homes=said.homes,
            seed=said.seed,
            speed=parse_speed(said.speed),
            flaws=Flaws(malformed=said.malformed, unknown=said.unknown, wrong_time=said.wrong_time),
        ) as homes,
    ):
        if homes.next_ms is None and said.history_hours:
            homes.backfill(said.history_hours, stop=stop)
        homes.finish_backfill(stop)
        if not stop.is_set():
            homes.run(stop)


PARTS: dict[str, Callable[[Said], None]] = {
    "pipeline": pipeline,
    "alerts": alerts,
    "sensors": sensors,
}


def _end_with(starter: int) -> None:
    """So that nothing is left behind, whatever becomes of the process that started this one."""

    def watch() -> None:
        while os.getppid() == starter:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main(text: str) -> None:
    said = Said(**json.loads(text))
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        handlers=[PatientLog(sys.stderr.fileno())],
    )
    logging.getLogger("py4j").setLevel(logging.WARNING)
    _end_with(said.starter)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this
    try:
        PARTS[said.part](said)
    except Exception:
        log.exception("%s ends", said.instance)
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
