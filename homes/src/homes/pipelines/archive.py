"""Unit ``archive``: moves the alerts on to blob storage, as lines of JSON (requirement H5).

An object has the alerts of one batch and is named by the container, the range and the batch's first
LSN, so that a batch that comes again overwrites itself. A document that was changed between two
deliveries may be in two objects: ``read_archive`` gives each alert once, in its newest state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from homes.pipelines.blobs import Blobs, open_blobs
from leasehold import Change, ChangeFeedProcessor, Documents, LeaseStore, Retry, strict_json

NAME = "archive"
RETRY = Retry(attempts=10, backoff_s=0.5, backoff_max_s=60.0)
"""For ever: whatever a container holds can be archived, so it is the storage that is in trouble."""


def archive_unit(
    container: Documents,
    store: LeaseStore,
    url: str,
    *,
    retry: Retry = RETRY,
    start: str = "beginning",
    max_items: int = 1000,
    poll_interval_s: float = 1.0,
    **settings: Any,
) -> ChangeFeedProcessor:
    """One instance of the unit. ``url``: see ``open_blobs``. ``settings``: of
    ``ChangeFeedProcessor``."""
    return ChangeFeedProcessor(
        container,
        name=NAME,
        on_changes=_archiver(open_blobs(url), _folder_of(container)),
        store=store,
        retry=retry,
        start=start,
        max_items=max_items,
        poll_interval_s=poll_interval_s,
        **settings,
    )


def read_archive(url: str) -> list[dict[str, Any]]:
    """Every archived alert once, in its newest state."""
    blobs = open_blobs(url)
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for name in blobs.names():
        container = name.split("/")[0]
        for line in blobs.get(name).splitlines():
            alert = strict_json.loads(line)
            known = newest.get((container, alert["id"]))
            if known is None or known["_lsn"] < alert["_lsn"]:
                newest[container, alert["id"]] = alert
    return list(newest.values())


def _folder_of(container: Documents) -> str:
    """A recreated container starts its LSNs over, and must not overwrite its former self."""
    return f"{container.name}-{container.identity[:8]}"


def _archiver(blobs: Blobs, folder: str) -> Callable[[Sequence[Change]], None]:
    def on_changes(changes: Sequence[Change]) -> None:
        lines = [change.body + b"\n" for change in changes if change.document is not None]
        if lines:
            first = changes[0]
            blobs.put(f"{folder}/{first.range}/{first.lsn:020d}.jsonl", b"".join(lines))

    return on_changes
