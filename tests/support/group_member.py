"""A member of a group as a process of its own: ``python -m support.group_member '{"kind": …}'``.

``ours`` or ``stock`` (the official Python client with its own checkpoint store in Blob Storage). It
appends a line for every batch that it has handled: who, partition, sequences.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from chaos.instance import Log, end_with_parent

GROUP = "$Default"
INTERVAL_S, TTL_S = 1.0, 5.0


def main(said: dict[str, Any]) -> None:
    end_with_parent()
    log = Log(said["log"])
    (_ours if said["kind"] == "ours" else _stock)(said, log)


def _ours(said: dict[str, Any], log: Log) -> None:
    import leasehold as lh  # noqa: PLC0415

    def handle(events: Sequence[Any], context: Any) -> None:
        log.write(said["name"], context.partition, [event.sequence for event in events])

    lh.Processor(
        lh.open_feed(said["hub"]),
        group=GROUP,
        store=lh.open_store(said["store"]),
        instance=said["name"],
        on_batch=handle,
        lease_ttl_s=TTL_S,
        balance_interval_s=INTERVAL_S / 2,
        poll_interval_s=0.1,
        max_events=100,
    ).run()


def _stock(said: dict[str, Any], log: Log) -> None:
    from azure.core.credentials import AzureNamedKeyCredential  # noqa: PLC0415
    from azure.eventhub.aio import EventHubConsumerClient  # noqa: PLC0415
    from azure.eventhub.extensions.checkpointstoreblobaio import (  # noqa: PLC0415
        BlobCheckpointStore,
    )

    blobs = said["blobs"]

    async def handle(context: Any, events: Sequence[Any]) -> None:
        if events:
            sequences = [event.sequence_number for event in events]
            log.write(said["name"], context.partition_id, sequences)
            await context.update_checkpoint(events[-1])

    async def run() -> None:
        credential = AzureNamedKeyCredential(blobs["account"], blobs["key"])
        store = BlobCheckpointStore(blobs["url"], blobs["container"], credential=credential)
        client = EventHubConsumerClient.from_connection_string(
            os.environ["AZURE_EVENTHUBS_CONNECTION_STRING"],
            GROUP,
            eventhub_name=said["hub"].rpartition("/")[2].partition("?")[0],
            checkpoint_store=store,
            load_balancing_interval=INTERVAL_S,
            partition_ownership_expiration_interval=TTL_S,
        )
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with client, store:
            receiving = asyncio.ensure_future(
                client.receive_batch(
                    handle, max_batch_size=100, max_wait_time=1, starting_position="-1"
                )
            )
            await asyncio.wait(
                [receiving, asyncio.ensure_future(stop.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            await client.close()
            await asyncio.wait([receiving])

    asyncio.run(run())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
