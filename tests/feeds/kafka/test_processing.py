"""Processors, the estimator and the command line over a Kafka topic, with faults."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from support.command_line import leasehold
from support.kafka import Kafka
from support.processing import open_leases, until

import leasehold as lh

pytestmark = pytest.mark.takes_s(45)

QUICK: dict[str, Any] = {"balance_interval_s": 0.2, "lease_ttl_s": 30.0, "poll_interval_s": 0.05}
BOUND_S = 60.0


def filled(server: Kafka, events: int = 30) -> str:
    topic = server.topic(partitions=3)
    with_keys(server, topic, range(events))
    return topic


def with_keys(server: Kafka, topic: str, numbers: range) -> None:
    sender = lh.open_sender(server.url(topic))
    sender.send_columns([f"key-{n % 7}" for n in numbers], [b"%d" % n for n in numbers])
    sender.close()


def drained(
    server: Kafka, topic: str, folder: Path, group: str = "g", **settings: Any
) -> list[int]:
    """What a processor is given that stops at the end of the topic."""
    found: list[int] = []
    feed = lh.open_feed(server.url(topic))
    lh.Processor(
        feed,
        group=group,
        store=open_leases(folder),
        on_event=lambda event: found.append(int(event.body)),
        **(QUICK | settings),
    ).run(until_drained=True)
    feed.close()
    return found


def offsets(server: Kafka, topic: str, group: str) -> dict[int, int]:
    """As Kafka's own tools would show them."""
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p) for p in range(3)])
    found = server.admin.list_consumer_group_offsets([asked])[group].result(BOUND_S)
    return {each.partition: each.offset for each in found.topic_partitions if each.offset >= 0}


def ends(server: Kafka, topic: str) -> dict[int, int]:
    feed = lh.open_feed(server.url(topic))
    found = asyncio.run(feed.extents())
    feed.close()
    return {int(each.partition): each.end for each in found if each.end}


def commit_as_kafka_does(server: Kafka, topic: str, group: str, at: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": server.brokers, "group.id": group, "log_level": 2})
    wanted = [TopicPartition(topic, p, offset) for p, offset in at.items()]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.close()


def test_a_group_reads_all_of_a_topic_and_its_lag_is_known(kafka: Kafka, tmp_path: Path) -> None:
    topic = filled(kafka)
    feed, store = lh.open_feed(kafka.url(topic)), open_leases(tmp_path)
    before = asyncio.run(lh.Estimator(feed, group="g", store=store).observe())
    assert before.lag_events == 30
    assert sorted(drained(kafka, topic, tmp_path)) == list(range(30))
    with_keys(kafka, topic, range(30, 33))
    after = asyncio.run(lh.Estimator(feed, group="g", store=open_leases(tmp_path)).observe())
    assert after.lag_events == 3
    assert after.lag_s is not None
    assert after.lag_s < BOUND_S
    feed.close()


def test_a_mirrored_group_is_shown_by_kafka_as_far_as_it_has_got(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = filled(kafka)
    assert len(drained(kafka, topic, tmp_path, mirror_offsets=True)) == 30
    assert offsets(kafka, topic, "g") == ends(kafka, topic)


def test_a_consumer_group_with_live_members_refuses_the_mirror_and_nothing_else_fails(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = filled(kafka)
    group = f"live-{topic}"
    live = Consumer(
        {
            "bootstrap.servers": kafka.brokers,
            "group.id": group,
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    live.subscribe([topic])

    def joined() -> bool:
        live.poll(0.1)
        return bool(live.assignment())

    asyncio.run(until(joined))
    errors: list[Exception] = []
    found = drained(
        kafka, topic, tmp_path, group=group, mirror_offsets=True, on_error=errors.append
    )
    live.close()
    assert sorted(found) == list(range(30))
    assert [error for error in errors if f"the offsets of {group} are not shown" in str(error)]
    assert offsets(kafka, topic, group) == {}


def test_a_feed_without_such_tools_refuses_to_mirror(tmp_path: Path) -> None:
    hub = lh.Hub.create(tmp_path / "hub.db", name="h", namespace="n", partitions=1)
    with pytest.raises(lh.BadInput, match="mirror_offsets=True: Hub"):
        lh.Processor(
            hub, group="g", store=open_leases(tmp_path), on_event=print, mirror_offsets=True
        )


def test_a_group_goes_on_where_a_consumer_group_of_kafka_has_committed(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = filled(kafka)
    at = {p: end - 2 for p, end in ends(kafka, topic).items()}
    named = dict(list(at.items())[1:])  # one partition without, which begins at its beginning
    commit_as_kafka_does(kafka, topic, "old", named)
    found = drained(kafka, topic, tmp_path, start="committed:old")
    assert len(found) == 30 - sum(named.values())


def test_a_topic_recreated_between_two_runs_is_read_from_its_beginning(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = filled(kafka)
    drained(kafka, topic, tmp_path)
    kafka.admin.delete_topics([topic])[topic].result(BOUND_S)
    asyncio.run(until(lambda: topic not in kafka.admin.list_topics(timeout=BOUND_S).topics))
    kafka.topic(partitions=3, name=topic)
    with_keys(kafka, topic, range(100, 150))
    errors: list[Exception] = []
    found = drained(kafka, topic, tmp_path, on_error=errors.append)
    assert sorted(found) == list(range(100, 150))
    assert {error.reason for error in errors if isinstance(error, lh.PositionGone)} == {
        "other feed"
    }


def test_a_broker_that_is_killed_and_started_again_costs_nothing(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = filled(kafka)
    feed = lh.open_feed(kafka.url(topic, timeout_s="1"))
    found: list[int] = []
    errors: list[Exception] = []
    processor = lh.Processor(
        feed,
        group="g",
        store=open_leases(tmp_path),
        on_event=lambda event: found.append(int(event.body)),
        on_error=errors.append,
        retry_max_s=1.0,
        **QUICK,
    )

    async def story() -> None:
        running = asyncio.ensure_future(processor.run_async())
        await until(lambda: len(found) == 30)
        with kafka.nodes[0].down():
            await until(lambda: any(isinstance(e, lh.FeedUnavailable) for e in errors))
        await asyncio.to_thread(with_keys, kafka, topic, range(30, 60))
        await until(lambda: len(found) >= 60)
        processor.stop()
        await running

    asyncio.run(story())
    feed.close()
    assert sorted(found) == list(range(60))


def test_the_command_line_takes_a_topic_for_a_feed(kafka: Kafka, tmp_path: Path) -> None:
    topic, store = kafka.topic(partitions=3), f"sqlite:///{tmp_path}/leases.db"
    url = kafka.url(topic)
    told = leasehold("hub", "send", url, "--key-field", "home", stdin='{"home":"H1"}\n' * 4)
    assert told.stdout == f"sent 4 events to {topic}\n"
    letters = f"sqlite:///{tmp_path}/dead.db"
    handled: list[Any] = []
    feed = lh.open_feed(url)

    def fail(event: Any) -> None:
        handled.append(event)
        raise ValueError("no good")

    lh.Processor(
        feed,
        group="g",
        store=lh.open_store(store),
        on_event=fail,
        retry=lh.Retry(attempts=1, then="dead-letter", backoff_s=0.01),
        dead_letters=lh.open_dead_letters(letters),
        **QUICK,
    ).run(until_drained=True)
    feed.close()
    group = ("--group", "g", "--store", store)
    assert "caught up" in leasehold("lag", url, *group).stdout
    sent_back = leasehold("dead-letters", "redrive", "--all", "--store", letters, "--hub", url)
    assert "sent 4 dead letters back" in sent_back.stdout
    lag = json.loads(leasehold("lag", url, *group, "--json").stdout)
    assert lag["lag_events"] == 4
    assert topic in leasehold("leases", "--store", store).stdout
    moved = leasehold("rewind", url, *group, "--to", "earliest", "--yes", "--json")
    assert sum(each["again"] for each in json.loads(moved.stdout)) == 4
    feed = lh.open_feed(url)
    again: list[Any] = []
    lh.Processor(feed, group="g", store=lh.open_store(store), on_event=again.append, **QUICK).run(
        until_drained=True
    )
    feed.close()
    assert len(again) == 8
    assert {event.partition for event in again} == {handled[0].partition}
    redriven = [event for event in again if event.properties]
    assert {event.properties["leasehold-redrives"] for event in redriven} == {"1"}


def test_a_url_that_is_wrong_is_told_without_a_stack_trace(kafka: Kafka, tmp_path: Path) -> None:
    group = ("--group", "g", "--store", f"sqlite:///{tmp_path}/leases.db")
    told = leasehold("lag", kafka.url("no-such-topic"), *group, ok=False)
    assert "there is no topic no-such-topic" in told.stderr
    assert told.returncode == 2
