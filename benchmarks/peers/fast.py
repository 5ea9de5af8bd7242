"""A member with faststream, on its confluent-kafka broker."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from faststream import FastStream
from faststream.confluent import KafkaBroker, KafkaMessage

from benchmarks.peers.member import Aggregates, PeerProcess

member = PeerProcess()
aggregates = Aggregates()
BATCH = 1000

broker = KafkaBroker(member.brokers, config=member.settings, logger=None)
app = FastStream(broker, logger=None)
options: dict[str, Any] = {
    "group_id": member.group,
    "auto_offset_reset": "earliest",
    "auto_commit_interval_ms": int(member.commit_s * 1000),
}


async def log(body: Any, message: KafkaMessage) -> None:
    raw = message.raw_message
    member.handled(raw.partition(), raw.offset())


async def aggregate(readings: list[Any]) -> None:
    if not aggregates.events:
        member.begin()
    for reading in readings:
        aggregates.add(reading)
    if aggregates.events >= member.events:
        member.tell(aggregates)
        app.exit()


def main() -> None:
    logging.disable(logging.INFO)
    if member.events:
        broker.subscriber(member.topic, batch=True, max_records=BATCH, **options)(aggregate)
    else:
        broker.subscriber(member.topic, **options)(log)
    asyncio.run(app.run())


if __name__ == "__main__":
    main()
