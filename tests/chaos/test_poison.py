"""One bad event among very many: it alone is set aside, whatever it does to its handler."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import Sequence
from pathlib import Path

from chaos.judge import Life, judge, read_log
from chaos.processes import Process, Processes, wait_until
from chaos.sampler import Sampler
from chaos.test_chaos import PATIENT, SEED

import leasehold as lh
from leasehold.core.model import Group
from leasehold.ports import DeadLetter, LetterFilter
from leasehold.stores import open_dead_letters

pytestmark = PATIENT

PARTITIONS = 16
GROUP = Group(namespace="poison", feed="events", name="poison")


def make_hub(path: Path, events: int) -> dict[str, list[int]]:
    """A hub of numbered events; what it holds, by partition and sequence."""
    with lh.Hub.create(
        path, name=GROUP.feed, namespace=GROUP.namespace, partitions=PARTITIONS
    ) as hub:
        bodies = [json.dumps({"number": number}) for number in range(events)]
        hub.send_columns([f"key-{number % 500}" for number in range(events)], bodies)
        return {
            partition: [
                json.loads(event.body)["number"]
                for event in hub.read_batch(
                    partition, hub.position_of(partition, "earliest"), events
                ).events
            ]
            for partition in hub.properties().partition_ids
        }


def letters_in(url: str) -> Sequence[DeadLetter]:
    async def read() -> Sequence[DeadLetter]:
        store = open_dead_letters(url)
        try:
            return await store.list(LetterFilter())
        finally:
            await store.close()

    return asyncio.run(read())


def place_of(number: int, held: dict[str, list[int]]) -> tuple[str, int]:
    return next((p, numbers.index(number)) for p, numbers in held.items() if number in numbers)


def test_of_ten_thousand_events_exactly_the_bad_one_is_dead_lettered(tmp_path: Path) -> None:
    held = make_hub(tmp_path / "hub.db", 10_000)
    bad = random.Random(SEED).randrange(10_000)
    print(f"the bad event is {bad}, seed {SEED}")
    handled: dict[str, list[int]] = {partition: [] for partition in held}

    def on_batch(events: Sequence[lh.Event]) -> None:
        numbers = [json.loads(event.body)["number"] for event in events]
        if bad in numbers:
            raise ValueError("what is this?")
        handled[events[0].partition] += numbers

    letters_url = f"sqlite:///{tmp_path}/dead.db"
    lh.Processor(
        lh.Hub.open(tmp_path / "hub.db"),
        group=GROUP.name,
        store=lh.open_store(f"sqlite:///{tmp_path}/leases.db"),
        on_batch=on_batch,
        retry=lh.Retry(attempts=3, then="dead-letter", backoff_s=0.01, backoff_max_s=0.05),
        dead_letters=open_dead_letters(letters_url),
        balance_interval_s=0.5,
    ).run(until_drained=True)

    (letter,) = letters_in(letters_url)
    assert json.loads(letter.body) == {"number": bad}
    assert (letter.partition, letter.sequence) == place_of(bad, held)
    assert (letter.attempts, letter.reason) == (3, "ValueError: what is this?")
    assert handled == {p: [n for n in numbers if n != bad] for p, numbers in held.items()}


DEATHS_MAX = 40


def test_attempts_survive_a_handler_that_kills_its_process(tmp_path: Path) -> None:
    """However often an event takes its instance down with it, and the instance is started again:
    in the end that event is a dead letter, and no other is blamed for having been at hand."""
    held = make_hub(tmp_path / "hub.db", 1_600)
    deadly = random.Random(SEED).randrange(1_600)
    print(f"the deadly event is {deadly}, seed {SEED}, logs in {tmp_path}")
    store_url, letters_url = f"sqlite:///{tmp_path}/leases.db", f"sqlite:///{tmp_path}/dead.db"
    ends = {partition: len(numbers) for partition, numbers in held.items()}
    lives: dict[str, Life] = {}
    running: dict[str, Process] = {}

    def start(name: str) -> None:
        label = f"{name}-{len(lives)}"
        lives[label] = Life(instance=label)
        said = {
            "feed": str(tmp_path / "hub.db"),
            "store": store_url,
            "group": GROUP.name,
            "instance": name,
            "log": str(tmp_path / f"{label}.log"),
            "work_s": (0.2, 0.5),
            "seed": len(lives),
            "handler": "batch-plain",
            "checkpoint": {"batches": 1},
            "settings": {"lease_ttl_s": 2.0, "balance_interval_s": 0.5, "max_events": 20},
            "retry": {"attempts": 3, "then": "dead-letter", "backoff_s": 0.01},
            "dead_letters": letters_url,
            "deadly": deadly,
        }
        running[name] = processes.start(label, "instance", json.dumps(said))

    def done() -> bool:
        for name, process in tuple(running.items()):
            if not process.running:
                assert process.popen.returncode == -signal.SIGKILL, process.printed()
                lives[process.label].killed = True
                assert len(lives) < DEATHS_MAX, f"{len(lives)} deaths, {letters_in(letters_url)}"
                start(name)
        return sampler.checkpoints() == ends

    with Processes(tmp_path) as processes, Sampler(store_url, GROUP) as sampler:
        start("a")
        start("b")
        wait_until(
            done,
            "everything handled but the deadly event",
            moves=lambda: (len(lives), sampler.checkpoints()),
        )
        for process in running.values():
            process.popen.send_signal(signal.SIGTERM)
        wait_until(lambda: not any(each.running for each in running.values()), "all ended")

    letters = [(letter.partition, letter.sequence) for letter in letters_in(letters_url)]
    assert letters == [place_of(deadly, held)]
    tenures = [
        tenure
        for label, life in lives.items()
        for tenure in read_log(tmp_path / f"{label}.log", life)
    ]
    verdict = judge(held, tenures, sampler.samples, letters)
    print(f"{len(lives) - 2} deaths; {verdict}")
    assert verdict.problems == []
