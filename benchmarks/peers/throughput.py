"""JSON readings to aggregates per home and minute, by one process of each: CPU time, and whether
all find the same."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from confluent_kafka import Producer

from benchmarks.peers.contenders import Contender
from benchmarks.peers.member import Aggregates
from benchmarks.peers.stage import commit, launch

HOMES = 1000
BOUND_S = 300.0
START_MS = 1_760_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    brokers: str
    topic: str
    partitions: int
    events: int
    folder: Path


def fill(work: Workload, seed: int = 7) -> Aggregates:
    """Sends the readings of half an hour. Returns what everybody should find."""
    chance, expected = random.Random(seed), Aggregates()
    producer = Producer(
        {
            "bootstrap.servers": work.brokers,
            "linger.ms": 20,
            "queue.buffering.max.messages": work.events + 1,
        }
    )
    for number in range(work.events):
        reading = {
            "home": f"H{chance.randrange(HOMES):06}",
            "sensor": chance.choice(("temperature", "motion", "glass", "smoke")),
            "time_ms": START_MS + number * 1_800_000 // work.events,
            "value": chance.randrange(1000),
        }
        expected.add(reading)
        body = json.dumps(reading).encode()
        producer.produce(work.topic, body, partition=number % work.partitions)
        producer.poll(0)
    if left := producer.flush(60):
        raise RuntimeError(f"{left} readings were not stored")
    return expected


def events_per_cpu_s(
    work: Workload, contender: Contender, expected: Aggregates, *, columns: bool = False
) -> float:
    """Fails if it finds anything else than it should."""
    group = f"work-{uuid4().hex[:8]}"
    commit(work.brokers, group, work.topic, dict.fromkeys(range(work.partitions), 0))
    out = work.folder / f"{group}.json"
    errors = out.with_suffix(".err")
    if columns and contender.program == "ours":  # batches that are worth it
        contender = replace(contender, settings={**contender.settings, "max_events": 20_000})
    process = launch(
        contender,
        errors,
        out=str(out),
        brokers=work.brokers,
        topic=work.topic,
        group=group,
        instance=group,
        commit_s=5.0,
        events=work.events,
        columns=columns,
    )
    with process:
        try:
            code = process.wait(BOUND_S)
        finally:
            process.kill()
    if code:
        raise RuntimeError(f"{contender.name} ended with {code}:\n{errors.read_text()[-2000:]}")
    told = json.loads(out.read_text())
    require_equal(contender.name, told["found"], expected)
    return work.events / float(told["cpu_s"])


def require_equal(name: str, found: Sequence[Sequence[object]], expected: Aggregates) -> None:
    wanted = [[*key, *values] for key, values in sorted(expected.found.items())]
    if list(map(list, found)) != wanted:
        differ = [pair for pair in zip(found, wanted, strict=False) if list(pair[0]) != pair[1]]
        raise AssertionError(
            f"{name} found {len(found)} aggregates of {len(wanted)}; first difference: {differ[:1]}"
        )
