"""The web application over what the other processes keep in a folder: everything opened, watched,
served, and closed again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

from homes.local.charges import read_charges
from homes.local.cycles import read_cycles
from homes.local.places import ACTIVITY, Places, co_wanted, history_share, sensor_clock
from homes.pipelines import alerts, archive, notify
from homes.simulator.sensors import add_co_detectors, send_reading
from homes.supervisor.fleet import Fleet
from homes.view.recent_activity import RecentActivity
from homes.view.table import ActivityTable
from homes.web.app import make_app
from homes.web.audit import Audit
from homes.web.drills import Drills
from homes.web.guard import LOOPBACK
from homes.web.kept_until import KeptUntil
from homes.web.limits import ServerLimits
from homes.web.operations import Operations, WatchedGroup
from homes.web.operations_routes import CoDetectors
from homes.web.proxies import Proxies, PublicUrl
from homes.web.secrets import Secrets
from homes.web.server import WebServer
from homes.web.sessions import Sessions
from homes.web.sign_in import KNOWN_MAX
from homes.web.waiting import Waiting
from leasehold import (
    BadInput,
    Documents,
    Feed,
    open_container,
    open_dead_letters,
    open_feed,
    open_sender,
    open_store,
)

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
    public_url: str | None = None,
    trusted_proxies: Sequence[str] = (),
    fleet: Fleet | None = None,
    drills: bool = False,
    limits: ServerLimits | None = None,
) -> Iterator[WebServer]:
    """Serve until the block ends. ``names``: further host names that the page is reached by; none,
    and listening on every address: any. ``secure``: behind TLS. ``public_url``: what browsers
    show, which says both. ``trusted_proxies``: addresses and networks beside loopback.
    ``drills``: residents may raise alarms in their own homes."""
    public = None if public_url is None else PublicUrl.parse(public_url)
    if public is not None:
        names, secure = [*names, public.host], secure or public.secure
    proxies = Proxies(trusted_proxies)
    limits = limits or ServerLimits()
    if not places.urls.feed and not places.hub.exists():
        raise BadInput(
            f"there is no hub at {places.hub}; make one with: leasehold hub create {places.hub}"
        )
    with ExitStack() as stack:
        feed = open_feed(places.feed)
        stack.callback(feed.close)
        sender = stack.enter_context(closing(open_sender(places.feed)))
        container = None
        if places.urls.alerts or places.alerts_file.exists():
            container = stack.enter_context(closing(open_container(places.alerts)))
        store, letters = open_store(places.store), open_dead_letters(places.dead_letters)
        stack.callback(_close, store, letters)
        activity = stack.enter_context(
            RecentActivity(
                ActivityTable(places.table),
                partitions=len(asyncio.run(feed.partitions())),
                clock=sensor_clock(places.hub),
                snapshot=places.snapshot,
            )
        )
        operations = Operations(
            _groups(feed, container, store),
            dead_letters=letters,
            cycles=lambda: read_cycles(places.cycles),
            charges=lambda: read_charges(places.charges),
        )
        app = make_app(
            activity=activity,
            secrets=secrets,
            sessions=Sessions(secrets, signed_out=places.signed_out, codes=places.codes),
            alerts=container,
            operations=operations,
            fleet=fleet,
            drills=Drills(partial(send_reading, sender)) if drills else None,
            waiting=Waiting(operations, fleet, lambda: history_share(places.hub)),
            co_detectors=CoDetectors(
                lambda: add_co_detectors(places.hub, sender.identity),
                lambda: co_wanted(places.hub, sender.identity),
            ),
            hosts=_hosts(host, names),
            secure=secure,
            origin=None if public is None else public.origin,
            proxies=proxies,
            known=KeptUntil(
                places.known_addresses, time.time, what="known addresses", most=KNOWN_MAX
            ),
            audit=Audit(places.audit),
            streams_max=limits.streams_max,
        )
        trusted = proxies.trusted if secure else _nobody
        server = WebServer(app, host=host, port=port, limits=limits, trusted=trusted)
        yield stack.enter_context(server)


def _groups(feed: Feed, container: Documents | None, store: Any) -> list[WatchedGroup]:
    found = [WatchedGroup(feed=feed, group=name, store=store) for name in (ACTIVITY, alerts.GROUP)]
    if container is not None:
        changes = container.feed()
        found += [
            WatchedGroup(feed=changes, group=n, store=store) for n in (notify.NAME, archive.NAME)
        ]
    return found


def _nobody(address: str) -> bool:
    return False


def _hosts(host: str, names: Sequence[str]) -> Collection[str] | None:
    if host in EVERYWHERE and not names:
        return None
    return {*LOOPBACK, host.lower(), *(name.lower() for name in names)}


def _close(*stores: Any) -> None:
    async def close() -> None:
        for store in stores:
            await store.close()

    asyncio.run(close())
