"""A member with quixstreams."""

from __future__ import annotations

from typing import Any

from quixstreams import Application, message_context

from benchmarks.peers.member import Aggregates, PeerProcess

member = PeerProcess()
aggregates = Aggregates()


def log(value: Any) -> None:
    context = message_context()
    member.handled(context.partition, context.offset)


def add(reading: Any) -> None:
    if not aggregates.events:
        member.begin()
    aggregates.add(reading)


def main() -> None:
    app = Application(
        broker_address=member.brokers,
        consumer_group=member.group,
        auto_offset_reset="earliest",
        commit_interval=member.commit_s,
        consumer_extra_config=member.settings,
        auto_create_topics=False,
        loglevel="WARNING",
    )
    if member.events:
        app.dataframe(app.topic(member.topic, value_deserializer="json")).update(add)
        app.run(count=member.events, collect=False)
        member.tell(aggregates)
    else:
        app.dataframe(app.topic(member.topic, value_deserializer="bytes")).update(log)
        app.run()


if __name__ == "__main__":
    main()
