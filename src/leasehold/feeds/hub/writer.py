"""Puts events into a hub: which partition, within which bounds, all of a send or nothing."""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any

import pyarrow as pa

from leasehold.core.event import EventData
from leasehold.errors import BadInput, FeedUnavailable, LeaseholdError
from leasehold.feeds.hub.batches import Frame, columns_of, encode, event_bytes
from leasehold.feeds.hub.file import HubFile, RemovedEvents
from leasehold.feeds.hub.intake import (
    columns_of_events,
    cut,
    keys_column,
    require_fit,
    spread,
)
from leasehold.feeds.keys import partition_of, partitions_of
from leasehold.feeds.sent_columns import bodies_column, properties_column, require_same_length
from leasehold.ports import Appended

log = logging.getLogger("leasehold")
TRIM_INTERVAL_S = 10.0


class HubWriter:
    def __init__(self, file: HubFile, batch_bytes_max: int) -> None:
        self._file = file
        self._batch_bytes_max = batch_bytes_max
        self.partitions = file.count_partitions()
        self._turn = itertools.count(os.getpid())
        self._trimmed_at = time.monotonic()
        self._trim_trouble = ""

    def send(
        self, events: Sequence[EventData], key: str | None, partition: int | None
    ) -> list[Appended]:
        """One batch, into one partition."""
        if not events:
            return []
        flags, batch = columns_of(*columns_of_events(events, key))
        sizes = event_bytes(batch)
        require_fit(sizes, self._batch_bytes_max)
        total = int(sizes.sum())
        if total > self._batch_bytes_max:
            raise BadInput(
                f"this batch of {len(events)} events takes {total} bytes; batch_bytes_max is "
                f"{self._batch_bytes_max}: send fewer at once, or use send_columns"
            )
        frame = encode(0, flags, batch)
        turn = next(self._turn)

        def frames(partitions: int) -> list[Frame]:
            if partition is not None:
                chosen = partition
            elif key is not None:
                chosen = partition_of(key, partitions)
            else:
                chosen = turn % partitions
            return [frame._replace(partition=chosen)]

        return self._append(frames)

    def send_columns(
        self, keys: Any, bodies: Any, properties: Any, partition: int | None
    ) -> list[Appended]:
        """Any number of events, spread by key (or in turn) without touching them one by one."""
        body_column = bodies_column(bodies)
        key_column = None if keys is None else keys_column(keys)
        property_column = None if properties is None else properties_column(properties)
        require_same_length(body_column, key_column, property_column)
        if not len(body_column):
            return []
        flags, batch = columns_of(body_column, key_column, property_column)
        sizes = event_bytes(batch)
        require_fit(sizes, self._batch_bytes_max)

        def frames(partitions: int) -> list[Frame]:
            pieces: Iterable[tuple[int, pa.RecordBatch]]
            if key_column is not None and partition is None:
                chosen = partitions_of(key_column, partitions)
                pieces = spread(batch, sizes, chosen, self._batch_bytes_max)
            else:
                pieces = (
                    (
                        next(self._turn) % partitions if partition is None else partition,
                        batch.slice(start, stop - start),
                    )
                    for start, stop in cut(sizes, self._batch_bytes_max)
                )
            return [encode(number, flags, piece) for number, piece in pieces]

        return self._append(frames)

    def _append(self, frames: Callable[[int], list[Frame]]) -> list[Appended]:
        # Compressing happens outside the transaction, so the number of partitions may have been
        # raised meanwhile; it cannot be raised forever.
        for _ in range(100):
            ready = frames(self.partitions)
            appended = self._file.append(ready, self.partitions)
            if appended is not None:
                self._keep_retention()
                return appended
            self.partitions = self._file.count_partitions()
        raise FeedUnavailable(f"the partitions of {self._file.path} keep changing; try again")

    def trim(self, max_age_s: float | None, max_bytes: int | None) -> RemovedEvents:
        events = stored_bytes = 0
        if max_age_s is not None and max_age_s != inf:
            oldest_us = self._file.own_us() - int(max_age_s * 1e6)
            for partition in range(self._file.count_partitions()):
                removed = self._file.remove_before(partition, own_us=oldest_us)
                events, stored_bytes = events + removed.events, stored_bytes + removed.stored_bytes
        if max_bytes is not None:
            removed = self._file.remove_beyond(max_bytes)
            events, stored_bytes = events + removed.events, stored_bytes + removed.stored_bytes
        return RemovedEvents(events, stored_bytes)

    def _keep_retention(self) -> None:
        """Producers keep the hub within its retention, every so often.

        Never raises: the events are stored by now, and a producer told otherwise would send them
        again.
        """
        if time.monotonic() - self._trimmed_at < TRIM_INTERVAL_S:
            return
        self._trimmed_at = time.monotonic()
        try:
            settings = self._file.settings()
            self.trim(settings.retention_s, settings.retention_bytes)
        except (LeaseholdError, sqlite3.Error, OSError) as error:
            if str(error) != self._trim_trouble:
                log.warning("old events are not removed: %s: it is tried again", error)
            self._trim_trouble = str(error)
        else:
            self._trim_trouble = ""
