"""Official Python processors share the hub by checkpoints in blob storage (Azurite)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from azure.eventhub import EventData, LoadBalancingStrategy
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore
from azure.storage.blob.aio import ContainerClient
from support.amqp_endpoint import ServedHub
from support.servers import Azurite

pytestmark = pytest.mark.servers
EVENTS = 200
CONTAINER = "python-processors"


class Processor:
    """A stock consumer that checkpoints every event, and what it was given."""

    def __init__(self, served: ServedHub, azurite: Azurite, seen: Counter[str]) -> None:
        self._store = BlobCheckpointStore.from_connection_string(
            azurite.connection_string, CONTAINER
        )
        self._client = EventHubConsumerClient.from_connection_string(
            served.connection_string,
            "$Default",
            checkpoint_store=self._store,
            load_balancing_interval=0.5,
            load_balancing_strategy=LoadBalancingStrategy.GREEDY,
            partition_ownership_expiration_interval=5,
        )
        self._seen = seen
        self.partitions: set[str] = set()
        self._task = asyncio.ensure_future(
            self._client.receive(
                self._on_event,
                on_partition_initialize=self._on_open,
                on_partition_close=self._on_close,
                starting_position="-1",
            )
        )

    async def _on_open(self, context: Any) -> None:
        self.partitions.add(context.partition_id)

    async def _on_close(self, context: Any, reason: Any) -> None:
        self.partitions.discard(context.partition_id)

    async def _on_event(self, context: Any, event: EventData) -> None:
        self._seen[event.body_as_str()] += 1
        await context.update_checkpoint(event)

    async def stop(self) -> None:
        await self._client.close()
        await asyncio.wait((self._task,), timeout=30)
        await self._store.close()


async def send(served: ServedHub, name: str) -> set[str]:
    sent = {f"{name} {n}" for n in range(EVENTS)}
    async with EventHubProducerClient.from_connection_string(served.connection_string) as client:
        for number in range(4):
            part = [EventData(body) for body in sorted(sent)[number::4]]
            await client.send_batch(part, partition_id=str(number))
    return sent


async def until(holds: Any, bound_s: float = 120) -> None:
    async with asyncio.timeout(bound_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def test_two_processors_share_the_partitions_and_one_goes_on_where_the_other_stopped(
    served: ServedHub, azurite: Azurite
) -> None:
    async def share() -> None:
        async with ContainerClient.from_connection_string(
            azurite.connection_string, CONTAINER
        ) as container:
            await container.create_container()
        seen: Counter[str] = Counter()
        first = Processor(served, azurite, seen)
        sent = await send(served, "early")
        await until(lambda: len(first.partitions) == 4)
        second = Processor(served, azurite, seen)
        await until(lambda: len(first.partitions) == len(second.partitions) == 2)
        sent |= await send(served, "middle")
        await until(lambda: seen.keys() == sent)
        await first.stop()
        await until(lambda: len(second.partitions) == 4)
        sent |= await send(served, "late")
        await until(lambda: seen.keys() == sent)
        await second.stop()
        assert all(seen[f"late {n}"] == 1 for n in range(EVENTS))

    asyncio.run(share())
