"""``ChangeFeedProcessor``: a function on every change of a container (requirements C1 to C13)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, Unpack

from leasehold.clock import within
from leasehold.core.start import AtTime, Earliest, Latest, Start, StockLeases, parse
from leasehold.errors import BadInput
from leasehold.ports import Feed, LeaseStore
from leasehold.processor.keywords import ChangeFeedKeywords
from leasehold.processor.processor import Processor
from leasehold.settings import CHANGES_PACE

log = logging.getLogger("leasehold")
WORDS: Mapping[str, Start] = {"now": Latest(), "beginning": Earliest()}


class ChangeFeedProcessor(Processor):
    """One instance of a deployment unit. All instances with the same ``name`` and lease store share
    the container's ranges; each unit is told of every change.

    ``on_changes(changes)`` may be plain or async and may take a context as a second argument. Only
    when it returned is the new position written; if it raises, the same batch comes again.
    """

    def __init__(
        self,
        container: Any,
        *,
        name: str,
        on_changes: Callable[..., Any],
        store: LeaseStore,
        instance: str | None = None,
        start: str | datetime | None = None,
        mode: Literal["latest", "all"] = "latest",
        max_items: int = CHANGES_PACE.max_events,
        poll_interval_s: float = CHANGES_PACE.poll_interval_s,
        on_error: Callable[..., Any] | None = None,
        on_lease_acquired: Callable[..., Any] | None = None,
        on_lease_released: Callable[..., Any] | None = None,
        **settings: Unpack[ChangeFeedKeywords],
    ) -> None:
        """
        Args:
            name: what the unit is for: all instances of that name share the ranges
            on_changes: the handler for a sequence of changes
            store: where the unit keeps its leases: `open_store(url)`
            instance: its name; none: hostname, PID and a random suffix
            start: `"now"` (if not given), `"beginning"`, a time, or `"leases:cosmos://…"`: where
                Azure's own processor stood. It counts when the unit's leases are first made, and
                never again
            mode: `"latest"`: the newest version of each document; `"all"`: every change, deletes
                as well
            max_items: the most changes that a handler is given at a time
            on_error: told of every error: of handlers, container and store
            on_lease_acquired: called before the first change of a range
            on_lease_released: called after the last one, with the reason
            settings: those of `Processor`
        """
        if not isinstance(name, str) or not name.strip():
            raise BadInput(f"name must be what the unit is for, such as notify, not {name!r}")
        if max_items < 1:
            raise BadInput(f"max_items must be 1 or more, not {max_items!r}")
        self._start_given = start
        super().__init__(
            _feed_of(container, mode),
            group=name,
            store=store,
            on_batch=on_changes,
            on_error=on_error,
            on_partition_open=on_lease_acquired,
            on_partition_close=on_lease_released,
            instance=instance,
            start=_start("now" if start is None else start),
            max_events=max_items,
            poll_interval_s=poll_interval_s,
            **settings,
        )

    async def _prepare(self) -> None:
        if self._start_given is not None and await self._has_leases():
            log.warning(
                "start=%r has no effect: %s has had its leases since an earlier start and goes on "
                "where it was. To go back, stop it and use: leasehold rewind",
                self._start_given,
                self.group,
            )

    async def _has_leases(self) -> bool:
        """False as well if the store does not tell in time, or a stop is asked for meanwhile."""
        looking = asyncio.ensure_future(self._store.snapshot(self.group))
        stopped = asyncio.ensure_future(self._host.stop_asked.wait())
        either = asyncio.wait((looking, stopped), return_when=asyncio.FIRST_COMPLETED)
        try:
            await within(self._clock, self._pace.request_timeout_s, either)
            return looking.done() and bool(looking.result().leases)
        except Exception as error:  # told and tried again by the upkeep
            log.info("whether %s has leases is not known yet: %s", self.group, error)
            return False
        finally:
            looking.cancel()
            stopped.cancel()


def _feed_of(container: Any, mode: Literal["latest", "all"]) -> Feed:
    """A container gives its feed; any other change feed is one already."""
    if mode not in ("latest", "all"):
        raise BadInput(f'mode must be "latest" or "all", not {mode!r}')
    feed: Feed = container.feed(mode) if callable(getattr(container, "feed", None)) else container
    return feed


def _start(value: str | datetime) -> Start:
    if isinstance(value, str) and value.strip().lower() in WORDS:
        return WORDS[value.strip().lower()]
    try:
        start = parse(value)
    except ValueError:
        start = None
    if isinstance(start, AtTime | StockLeases):
        return start
    raise BadInput(
        f'start must be "now", "beginning", a time with a time zone, such as '
        f'"time:2026-01-31T12:00:00Z", or "leases:cosmos://…", not {value!r}'
    )
