"""The web application over what the other processes keep in a folder: everything opened, watched,
served, and closed again."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from leasehold.errors import BadInput
from leasehold.feeds.container import Container
from leasehold.feeds.hub import Hub
from leasehold.homes import alerts, archive, notify
from leasehold.homes.places import ACTIVITY, Places, co_wanted, sensor_clock
from leasehold.homes.reads import Reads
from leasehold.homes.sensors import add_co_detectors
from leasehold.homes.table import ActivityTable
from leasehold.homes.web.app import make_app
from leasehold.homes.web.fleet import Fleet
from leasehold.homes.web.guard import LOOPBACK
from leasehold.homes.web.operations import Operations, Watched
from leasehold.homes.web.operations_routes import CoDetectors
from leasehold.homes.web.secrets import Secrets
from leasehold.homes.web.server import WebServer
from leasehold.homes.web.sessions import Sessions
from leasehold.stores import open_dead_letters, open_store

EVERYWHERE = ("0.0.0.0", "::", "")


@contextmanager
def open_web(
    places: Places,
    secrets: Secrets,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    names: Sequence[str] = (),
    secure: bool = False,
    fleet: Fleet | None = None,
) -> Iterator[WebServer]:
    """Serve until the block ends. ``names``: further host names that the page is reached by; none,
    and listening on every address: any. ``secure``: behind TLS."""
    if not places.hub.exists():
        raise BadInput(
            f"there is no hub at {places.hub}; make one with: leasehold hub create {places.hub}"
        )
    with ExitStack() as stack:
        hub = stack.enter_context(Hub.open(places.hub))
        container = None
        if places.alerts.exists():
            container = stack.enter_context(Container.open(places.alerts))
        store, letters = open_store(places.store), open_dead_letters(places.dead_letters)
        stack.callback(_close, store, letters)
        reads = stack.enter_context(
            Reads(
                ActivityTable(places.activity),
                partitions=len(hub.partition_ids()),
                clock=sensor_clock(places.hub),
                snapshot=places.snapshot,
            )
        )
        app = make_app(
            reads=reads,
            secrets=secrets,
            sessions=Sessions(secrets, signed_out=places.signed_out),
            alerts=container,
            operations=Operations(_groups(hub, container, store), dead_letters=letters),
            fleet=fleet,
            co_detectors=CoDetectors(
                lambda: add_co_detectors(places.hub),
                lambda: co_wanted(places.hub, hub.identity),
            ),
            hosts=_hosts(host, names),
            secure=secure,
        )
        yield stack.enter_context(WebServer(app, host=host, port=port))


def _groups(hub: Hub, container: Container | None, store: Any) -> list[Watched]:
    found = [Watched(feed=hub, group=name, store=store) for name in (ACTIVITY, alerts.GROUP)]
    if container is not None:
        feed = container.feed()
        found += [Watched(feed=feed, group=n, store=store) for n in (notify.NAME, archive.NAME)]
    return found


def _hosts(host: str, names: Sequence[str]) -> Collection[str] | None:
    if host in EVERYWHERE and not names:
        return None
    return {*LOOPBACK, host.lower(), *(name.lower() for name in names)}


def _close(*stores: Any) -> None:
    async def close() -> None:
        for store in stores:
            await store.close()

    asyncio.run(close())
