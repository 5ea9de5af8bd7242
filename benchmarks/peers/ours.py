"""A member with Leasehold."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import leasehold as lh
from benchmarks.peers.member import Aggregates, PeerProcess

member = PeerProcess()
aggregates, lock = Aggregates(), threading.Lock()


@cache
def begin() -> None:
    member.begin()


def log(event: lh.Event) -> None:
    member.handled(int(event.partition), event.sequence)


def aggregate(events: Sequence[lh.Event], context: lh.Context) -> None:
    begin()
    readings = [lh.strict_json.loads(event.body) for event in events]
    with lock:  # partitions are handled concurrently
        for reading in readings:
            aggregates.add(reading)


def aggregate_columns(events: lh.ArrowEvents, context: lh.Context) -> None:
    begin()
    assert member.columns is not None
    found = member.columns(events.arrow.column("body").to_pylist())
    with lock:
        aggregates.add_all(found)


def main() -> None:
    settings = dict(member.settings)
    store = lh.open_store(settings.pop("store"))
    handler: dict[str, Any] = {"on_event": log}
    if member.events:
        handler = {"on_batch": aggregate_columns if member.columns else aggregate}
    lh.Processor(
        lh.open_feed(f"kafka://{member.brokers}/{member.topic}"),
        group=member.group,
        instance=member.instance,
        store=store,
        start=f"committed:{member.group}",
        checkpoint=lh.every(seconds=member.commit_s),
        **handler,
        **settings,
    ).run(until_drained=member.events > 0)
    if member.events:
        member.tell(aggregates)


if __name__ == "__main__":
    main()
