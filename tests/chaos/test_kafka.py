"""Kafka as the feed: what test_chaos.py does, with brokers that are killed, started again, and
frozen besides. One store here; ``make soak`` takes all of them, and three brokers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from chaos.conftest import KINDS
from chaos.driver import PARTITIONS, Action, Chaos, Script
from chaos.feeds import kafka_place
from chaos.stores import Store
from chaos.test_chaos import PATIENT, QUICK, SECONDS, SEED, run
from support.kafka import Kafka

pytestmark = [PATIENT, pytest.mark.takes_s(60)]

STORES = KINDS if "LEASEHOLD_CHAOS_S" in os.environ else KINDS[:1]


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_whatever_happens_to_instances_store_and_brokers_nothing_is_lost_or_out_of_order(
    store: Store, own_kafka: Kafka, tmp_path: Path
) -> None:
    actions: tuple[Action, ...] = ("kill", "pause", "stop", "join", "outage", "broker")
    settings = {**QUICK, "lease_ttl_s": 2.0, "retry_max_s": 1.0}
    script = Script(seed=SEED, seconds=SECONDS, actions=actions, settings=settings)
    feed = kafka_place(own_kafka, PARTITIONS)
    chaos = Chaos(script, tmp_path, store.url, store.outages, feed)
    run(chaos, tmp_path)
    assert all(chaos.done[action] for action in actions)


@pytest.mark.parametrize("store", STORES, indirect=True)
def test_moves_in_good_order_deliver_no_event_twice(
    store: Store, own_kafka: Kafka, tmp_path: Path
) -> None:
    settings = {**QUICK, "lease_ttl_s": 60.0}
    script = Script(seed=SEED, seconds=SECONDS / 3, actions=("stop", "join"), settings=settings)
    chaos = Chaos(script, tmp_path, store.url, feed=kafka_place(own_kafka, PARTITIONS))
    verdict = run(chaos, tmp_path)
    assert verdict.twice.total() == 0
    assert verdict.moves["orderly"] == verdict.moves.total() > 0
