"""``ChangeFeedProcessor``: the user's function on every change of a container (SPEC C1 to C13)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from leasehold.core.start import AtTime, Earliest, Latest, Start, parse
from leasehold.errors import BadInput
from leasehold.ports import Feed, LeaseStore
from leasehold.processor.processor import Processor

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
        max_items: int = 100,
        poll_interval_s: float = 1.0,
        on_error: Callable[..., Any] | None = None,
        on_lease_acquired: Callable[..., Any] | None = None,
        on_lease_released: Callable[..., Any] | None = None,
        **settings: Any,
    ) -> None:
        """``start``: ``"now"`` (if not given), ``"beginning"`` or a time. It counts when the unit's
        leases are first made, and never again. ``settings``: those of ``Processor``."""
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

    async def run_async(self, *, until_drained: bool = False) -> None:
        if self._start_given is not None and await self._has_leases():
            log.warning(
                "start=%r has no effect: %s has had its leases since an earlier start and goes on "
                "where it was. To go back, stop it and use: leasehold rewind",
                self._start_given,
                self.group,
            )
        await super().run_async(until_drained=until_drained)

    async def _has_leases(self) -> bool:
        try:
            return bool((await self._store.snapshot(self.group)).leases)
        except Exception as error:  # told and tried again by the upkeep
            log.info("whether %s has leases is not known yet: %s", self.group, error)
            return False


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
    if isinstance(start, AtTime):
        return start
    raise BadInput(
        f'start must be "now", "beginning" or a time with a time zone, such as '
        f'"time:2026-01-31T12:00:00Z", not {value!r}'
    )
