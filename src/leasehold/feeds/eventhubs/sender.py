"""Sending to an event hub."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

from leasehold.core import strict_json
from leasehold.core.event import EventData
from leasehold.errors import BadInput
from leasehold.feeds.eventhubs.address import EventHubsSettings
from leasehold.feeds.eventhubs.broker import Broker
from leasehold.feeds.eventhubs.messages import message_of
from leasehold.feeds.eventhubs.sdk import Clients
from leasehold.feeds.eventhubs.troubles import is_busy, translated
from leasehold.feeds.sent_columns import (
    bodies_column,
    keys_column,
    properties_column,
    properties_text,
    require_same_length,
)

AT_ONCE = 8
"""Keys whose batches are under way at the same time."""


class EventHubsSender:
    def __init__(
        self,
        settings: EventHubsSettings,
        clients: Clients,
        requests: Counter[str],
        broker: Broker,
    ) -> None:
        self._settings, self._clients = settings, clients
        self._requests, self._broker = requests, broker

    async def send(
        self, events: Sequence[EventData], key: str | None, partition: str | int | None
    ) -> None:
        if key is not None and partition is not None:
            raise BadInput("give a partition_key or a partition_id, not both")
        for event in events:
            properties_text(event.properties)  # the SDK would send what nobody can read
        chosen = await self._known(partition)
        batch = await self._batch(partition_key=key, partition_id=chosen)
        for event in events:
            if not _added(batch, event):
                raise BadInput(
                    f"{len(events)} events are more than one batch of this hub takes "
                    f"({batch.max_size_in_bytes:,} bytes); send fewer at once"
                )
        await self._send(batch)

    async def send_columns(
        self, keys: Any, bodies: Any, properties: Any, partition: str | int | None
    ) -> None:
        contents = bodies_column(bodies).to_pylist()
        names = None if keys is None else keys_column(keys).to_pylist()
        texts = None if properties is None else properties_column(properties).to_pylist()
        require_same_length(contents, names, texts)
        chosen = await self._known(partition)
        by_key: dict[str | None, list[EventData]] = {}
        for row, body in enumerate(contents):
            text = texts[row] if texts else None
            event = EventData(body, strict_json.loads(text) if text else {})
            key = names[row] if names and chosen is None else None
            by_key.setdefault(key, []).append(event)
        room = asyncio.Semaphore(AT_ONCE)

        async def send(key: str | None, some: list[EventData]) -> None:
            async with room:
                await self._send_all(some, partition_key=key, partition_id=chosen)

        sending = [asyncio.ensure_future(send(key, some)) for key, some in by_key.items()]
        done = await asyncio.gather(*sending, return_exceptions=True)
        for error in done:
            if error is not None:
                raise error

    async def _known(self, partition: str | int | None) -> str | None:
        """The SDK waits for ever for one that there is not."""
        if partition is None:
            return None
        return (await self._broker.partition(str(partition), max_age_s=inf)).partition

    async def _send_all(self, events: Iterable[EventData], **target: str | None) -> None:
        """In as many batches as it takes."""
        left = iter(events)
        event = next(left, None)
        while event is not None:
            batch = await self._batch(**target)
            while event is not None and _added(batch, event):
                event = next(left, None)
            if not len(batch):
                assert event is not None
                raise BadInput(
                    f"an event of {len(event.body):,} bytes is more than this hub takes "
                    f"({batch.max_size_in_bytes:,})"
                )
            await self._send(batch)

    async def _batch(self, **target: str | None) -> Any:
        producer: Any = self._clients.producer()
        return await self._calling("sending", producer.create_batch(**target))

    async def _send(self, batch: Any) -> None:
        if len(batch):
            await self._broker.patience()
            self._requests["send"] += 1
            await self._calling("sending", self._clients.producer().send_batch(batch))

    async def _calling(self, what: str, work: Any) -> Any:
        try:
            return await work
        except Exception as error:
            if is_busy(error):
                self._broker.busy()
            raise translated(error, self._settings, what) from error


def _added(batch: Any, event: EventData) -> bool:
    try:
        batch.add(message_of(event))
    except ValueError:  # it is full
        return False
    return True
