"""The stage for all: one topic that is sent to all the time, and the groups that read it."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks.peers.contenders import ROOT, Contender
from benchmarks.peers.judge import HandledEvent, LogReader, changes, owners

LOOK_S = 0.4
BODY = b'{"value": 1}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    brokers: str
    topic: str
    partitions: int
    folder: Path
    commit_s: float
    still_s: float
    """A group has settled if nothing moved for so long."""
    settle_bound_s: float = 60.0
    sent: dict[tuple[int, int], float] = field(default_factory=dict)
    """When each event was sent, by partition and offset."""

    def ends(self) -> dict[int, int]:
        admin = AdminClient({"bootstrap.servers": self.brokers})
        wanted = {
            TopicPartition(self.topic, number): OffsetSpec.latest()
            for number in range(self.partitions)
        }
        found = admin.list_offsets(wanted)
        return {place.partition: each.result(30).offset for place, each in found.items()}

    @contextmanager
    def sending(self, every_s: float) -> Iterator[None]:
        """An event to every partition at this interval."""
        producer = Producer({"bootstrap.servers": self.brokers, "linger.ms": 0})
        over = threading.Event()

        def stored(at: float, error: Any, message: Any) -> None:
            if error is None:
                self.sent[message.partition(), message.offset()] = at

        def send() -> None:
            while not over.wait(every_s):
                for number in range(self.partitions):
                    told = partial(stored, time.monotonic())
                    producer.produce(self.topic, BODY, partition=number, on_delivery=told)
                producer.poll(0)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            producer.flush(10)


class PeerGroup:
    """A contender's members, each a process. Where they begin is committed beforehand: no library
    then has to choose it, and the judge knows it."""

    def __init__(self, stage: Stage, contender: Contender) -> None:
        self.stage, self.contender = stage, contender
        self.name = f"{contender.program}-{uuid4().hex[:8]}"
        self._folder = stage.folder / self.name
        self._folder.mkdir()
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[LogReader] = []
        self._handled: list[HandledEvent] = []
        self._started = 0
        self.starts = stage.ends()
        commit(stage.brokers, self.name, stage.topic, self.starts)

    @property
    def members(self) -> list[str]:
        return list(self._running)

    def start(self, count: int = 1) -> float:
        """Returns when."""
        at = time.monotonic()
        for _ in range(count):
            self._started += 1
            member = f"{self.name}-{self._started}"
            log = self._folder / f"{self._started}.log"
            self._running[member] = launch(
                self.contender,
                log.with_suffix(".err"),
                out=str(log),
                brokers=self.stage.brokers,
                topic=self.stage.topic,
                group=self.name,
                instance=member,
                commit_s=self.stage.commit_s,
            )
            self._readers.append(LogReader(log, member))
        return at

    def stop(self, count: int = 1) -> float:
        """In order, the newest first. Returns when they were asked to."""
        at = time.monotonic()
        leaving = [self._running.pop(member) for member in self.members[-count:]]
        for process in leaving:
            process.terminate()
        for process in leaving:
            process.wait(60)
        return at

    def kill(self, member: str) -> float:
        """Returns when it was dead."""
        process = self._running.pop(member)
        process.kill()
        process.wait()
        return time.monotonic()

    def kill_all(self) -> None:
        for member in self.members:
            with suppress(OSError):
                self.kill(member)

    def handled(self, since: float = float("-inf")) -> list[HandledEvent]:
        """By all members there ever were, in order of time."""
        self._handled += [each for reader in self._readers for each in reader.new()]
        self._handled.sort()
        return self._handled[bisect_left(self._handled, since, key=lambda each: each.at) :]

    def settle(self, since: float) -> float:
        """Waits until nothing moves any more. Returns when the last partition had moved."""
        deadline = time.monotonic() + self.stage.settle_bound_s
        while True:
            self._require_running()
            now = time.monotonic()
            handled = self.handled(min(since, now - self.stage.still_s) - 2.0)
            recent = owners(handled, now - 1.5, now)
            moved = [at for at in changes(handled, since, now) if now - at < self.stage.still_s]
            complete = len(recent) == self.stage.partitions
            shared = set(recent.values()) == set(self._running)
            if complete and shared and not moved and now - since > self.stage.still_s:
                return max(changes(handled, since, now), default=since)
            if now > deadline:
                raise TimeoutError(f"{self.contender.name} did not settle: {recent}")
            time.sleep(LOOK_S)

    def await_all_of(self, partitions: Collection[int], since: float) -> None:
        """Waits until each of these partitions was handled after a time."""
        deadline = time.monotonic() + self.stage.settle_bound_s + 60
        while not set(partitions) <= set(owners(self.handled(since), since, time.monotonic())):
            self._require_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.contender.name}: partitions are left behind")
            time.sleep(LOOK_S)

    def _require_running(self) -> None:
        for member, process in self._running.items():
            if process.poll() is not None:
                number = member.rpartition("-")[2]
                printed = (self._folder / f"{number}.err").read_text()[-2000:]
                raise RuntimeError(f"{member} ended with {process.returncode}:\n{printed}")


def commit(brokers: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    places = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
    deadline = time.monotonic() + 30
    while True:
        wanted = ConsumerGroupTopicPartitions(group, places)
        answer = admin.alter_consumer_group_offsets([wanted])[group].result(30)
        refused = [place for place in answer.topic_partitions if place.error]
        if not refused:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"offsets of {group} were not committed: {refused[0]}")
        time.sleep(LOOK_S)  # a new broker first makes the topic where they are kept


def launch(contender: Contender, errors: Path, **told: Any) -> subprocess.Popen[str]:
    said = json.dumps({"settings": dict(contender.settings), **told})
    with errors.open("w") as stderr:
        return subprocess.Popen(
            [contender.python, "-m", f"benchmarks.peers.{contender.program}", said],
            cwd=errors.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,  # its end tells a member that nobody waits for it any more
            stdout=stderr,
            stderr=stderr,
            text=True,
            process_group=0,
        )
