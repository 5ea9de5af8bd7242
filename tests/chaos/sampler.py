"""Looks at a group's leases all the time, as a process of its own would."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from chaos.judge import Sample

from leasehold.core.model import Group
from leasehold.errors import StoreUnavailable
from leasehold.ports import LeaseStore
from leasehold.stores import open_store

PAUSE_S = 0.1


class Sampler:
    def __init__(self, store_url: str, group: Group) -> None:
        self.samples: list[Sample] = []
        self._latest: Mapping[str, int] = {}
        self._error: Exception | None = None
        self._store_url, self._group = store_url, group
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def checkpoints(self) -> Mapping[str, int]:
        """By partition, at the last look. One that cannot look any more says why."""
        if self._error is not None:
            raise self._error
        return self._latest

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._error is not None and not failed:
            raise self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._sample())
        except Exception as error:
            self._error = error

    async def _sample(self) -> None:
        store = open_store(self._store_url)
        while not self._over.is_set():
            # A process may be stopped just while it holds SQLite's lock.
            with suppress(StoreUnavailable):
                await self._look(store)
            await asyncio.sleep(PAUSE_S)
        await self._look(store)
        await store.close()

    async def _look(self, store: LeaseStore) -> None:
        leases = (await store.snapshot(self._group)).leases
        now = time.monotonic()
        self.samples += [
            Sample(
                at=now,
                partition=lease.partition,
                next_sequence=lease.checkpoint.next_sequence,
                epoch=lease.epoch,
                owner=lease.owner,
            )
            for lease in leases
        ]
        self._latest = {lease.partition: lease.checkpoint.next_sequence for lease in leases}
