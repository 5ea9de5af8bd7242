"""Runs one part of the application as a process of its own: ``python -m homes.supervisor.run_part
PART INSTANCE``, with a ``PartConfig`` in the environment. A part ends in good order on SIGTERM, and
with the process that started it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from homes.local.app_log import start_log
from homes.local.charges import ChargeFile
from homes.local.cycles import CycleFile
from homes.local.patient_log import PatientLog
from homes.local.private_folder import keep_private
from homes.supervisor.part_config import PartConfig
from leasehold import open_container, open_dead_letters, open_feed, open_sender, open_store

LEASES: dict[str, Any] = {"lease_ttl_s": 6.0, "balance_interval_s": 2.0}
"""Quick enough to watch, slow enough for a machine that is busy."""
FAST_S = 365 * 86_400.0
"""How far ahead the sensors' clock may be if they ever ran faster than real time."""
log = logging.getLogger("leasehold")


def pipeline(config: PartConfig) -> None:
    """One Spark application of the group ``activity``."""
    from homes.pipelines.activity import activity_processor, activity_sink  # noqa: PLC0415
    from homes.pipelines.spark_session import spark_session  # noqa: PLC0415

    places = config.places
    spark = spark_session(places.urls.spark, config.instance, places.folder / "spark")
    if config.speed != "1":
        places.fast.touch()
    ahead = {"ahead_s": FAST_S} if places.fast.exists() else {}
    activity_processor(
        spark,
        open_feed(places.feed),
        open_store(places.store),
        activity_sink(places.table),
        open_dead_letters(places.dead_letters),
        homes=config.homes,
        instance=config.instance,
        gather_s=0.3,
        on_progress=CycleFile(places.cycles / f"{config.instance}.json").write,
        **ahead,
        **LEASES,
    ).run()


def alerts(config: PartConfig) -> None:
    """The group ``alerts`` and both units of its change feed."""
    from homes.pipelines.alerts import alerts_processor  # noqa: PLC0415
    from homes.pipelines.archive import archive_unit  # noqa: PLC0415
    from homes.pipelines.notify import notify_unit  # noqa: PLC0415

    places = config.places
    hub, container = open_feed(places.feed), open_container(places.alerts)
    letters = open_dead_letters(places.dead_letters)
    settings = {"instance": config.instance, **LEASES}
    stores = [open_store(places.store) for _ in range(3)]
    charged = [hub, container, container.feed("latest"), container.feed("all"), letters, *stores]
    charges = ChargeFile(places.charges / f"{config.instance}.json", charged)

    async def run() -> None:
        telling = asyncio.ensure_future(charges.keep_writing())
        await asyncio.gather(
            alerts_processor(
                hub,
                stores[0],
                container,
                dead_letters=letters,
                known=config.has,
                **settings,
            ).run_async(),
            notify_unit(
                container,
                stores[1],
                config.webhook,
                dead_letters=letters,
                secret=config.webhook_secret or None,
                **settings,
            ).run_async(),
            archive_unit(container, stores[2], places.archived, **settings).run_async(),
        )
        telling.cancel()

    asyncio.run(run())


def sensors(config: PartConfig) -> None:
    """The homes themselves: history on the first start, then on and on."""
    from homes.simulator.flaws import Flaws  # noqa: PLC0415
    from homes.simulator.sensors import Sensors, parse_speed  # noqa: PLC0415

    stop = threading.Event()
    # Not in the handler itself: this thread may hold the event's lock.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=stop.set).start())
    with (
        closing(open_sender(config.places.feed)) as feed,
        Sensors(
            feed,
            beside=config.places.hub,
            homes=config.homes,
            seed=config.seed,
            speed=parse_speed(config.speed),
            flaws=Flaws(
                malformed=config.malformed, unknown=config.unknown, wrong_time=config.wrong_time
            ),
        ) as homes,
    ):
        if homes.next_ms is None and config.history_hours:
            homes.backfill(config.history_hours, stop=stop)
        homes.finish_backfill(stop)
        if not stop.is_set():
            homes.run(stop)


PARTS: dict[str, Callable[[PartConfig], None]] = {
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


def main() -> None:
    keep_private()
    config = PartConfig.from_environ()
    start_log(PatientLog(sys.stderr.fileno()))
    _end_with(config.starter)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this
    try:
        PARTS[config.part](config)
    except Exception:
        log.exception("%s ends", config.instance)
        sys.exit(1)


if __name__ == "__main__":
    main()
