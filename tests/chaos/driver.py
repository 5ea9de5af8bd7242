"""A group of real processes, a steady producer, and somebody who kills, stops and starts them, and
takes their store or their feed away for a while.

What is done follows from one seed; what it leads to does not, for the machine has a say in it.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from math import inf
from pathlib import Path
from typing import Literal

from chaos.feeds import FeedPlace, hub_place
from chaos.instance import REPLACED
from chaos.judge import Life, Outage, Tenure, Verdict, judge, read_log
from chaos.processes import Process, Processes, WentWrong, wait_until
from chaos.sampler import Sampler
from support import servers
from support.blocking import result_of

from leasehold.core.model import Group

GROUP = Group(namespace="chaos", feed="events", name="chaos")
PARTITIONS = 16
INSTANCES = 4
INSTANCES_MAX = 6
LIBRARY_ABORTS = "rd_kafka_admin_response_parse: Assertion `rko_result' failed"

Action = Literal["kill", "pause", "stop", "join", "outage", "broker"]
HANDLERS = ("batch-plain", "batch-async", "event-plain", "event-async")
CHECKPOINTS: tuple[Mapping[str, float], ...] = (
    {"batches": 1},
    {"events": 1},
    {"events": 40, "seconds": 1.0},
    {"seconds": 0.7},
)
WORK_S = ((0.0, 0.04), (0.1, 0.6))
"""Quick ones, and ones slow enough to be caught in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    seed: int
    seconds: float
    actions: Sequence[Action]
    settings: Mapping[str, float]
    """For every ``Processor``."""
    pause_s: tuple[float, float] = (3.0, 5.0)
    outage_s: tuple[float, float] = (3.0, 5.0)
    between_s: tuple[float, float] = (0.3, 1.3)
    events_per_s: float = 800.0


@dataclass(slots=True, kw_only=True)
class Instance:
    name: str
    process: Process
    life: Life
    log: Path
    wakes_at: float | None = None
    """While it is stopped."""
    leaving: bool = False

    @property
    def active(self) -> bool:
        """Takes part, as far as anybody knows."""
        return self.process.running and self.wakes_at is None and not self.leaving

    @property
    def has_opened(self) -> bool:
        return self.log.exists() and self.log.stat().st_size > 0


class Chaos:
    def __init__(
        self,
        script: Script,
        folder: Path,
        store_url: str,
        outages: Sequence[servers.Outage] = (),
        feed: FeedPlace | None = None,
    ) -> None:
        self.done: Counter[str] = Counter()
        """What was done to the group, by kind."""
        self._script, self._folder, self._store_url = script, folder, store_url
        self._chance = random.Random(script.seed)
        self._feed = feed or hub_place(folder / "hub.db", PARTITIONS)
        self._sent = folder / "sent.log"
        self._instances: list[Instance] = []
        self._processes = Processes(folder)
        group = replace(GROUP, feed=self._feed.name, namespace=self._feed.namespace)
        self._sampler = Sampler(store_url, group)
        self._began = time.monotonic()
        self._kinds = cycle(outages)
        self._outage = ExitStack()
        self._back_at: float | None = None
        """While the store is out."""
        self._outages: list[Outage] = []
        self._feed_kinds = cycle(self._feed.outages)
        self._feed_outage = ExitStack()
        self._feed_back_at: float | None = None
        self._until = inf

    def run(self) -> Verdict:
        with self._processes, self._sampler, self._outage, self._feed_outage:
            rate = str(self._script.events_per_s)
            producer = self._processes.start(
                "producer", "producer", self._feed.send_to or self._feed.url, str(self._sent), rate
            )
            for _ in range(INSTANCES):
                self._join()
            wait_until(self._all_at_work, "all instances have partitions")
            self._disturb()
            producer.popen.send_signal(signal.SIGTERM)
            wait_until(lambda: not producer.running, "the producer ends")
            if producer.popen.returncode:
                raise WentWrong(f"the producer failed: {producer.printed()}")
            self._finish()
        samples = self._sampler.samples
        return judge(self._held(), self._tenures(), samples, outages=self._outages)

    def _all_at_work(self) -> bool:
        self._look_after()
        return all(each.has_opened for each in self._instances)

    def _disturb(self) -> None:
        """Every kind of action once, in any order; then by chance."""
        script, chance = self._script, self._chance
        next_at = time.monotonic()
        self._until = next_at + script.seconds
        due = chance.sample(script.actions, len(script.actions))
        while (now := time.monotonic()) < self._until or due or self._something_is_away:
            self._look_after()
            if now >= next_at:
                few = len(self._active()) < INSTANCES and chance.random() < 0.5
                planned = due[:1]
                action = due.pop(0) if due else "join" if few else chance.choice(script.actions)
                if not self._act(action):
                    due += planned
                next_at = now + chance.uniform(*script.between_s)
            time.sleep(0.02)

    @property
    def _something_is_away(self) -> bool:
        return self._back_at is not None or self._feed_back_at is not None

    def _act(self, action: Action) -> bool:
        """False: not now, there are too many instances or too few."""
        if action == "join":
            if sum(each.process.running for each in self._instances) >= INSTANCES_MAX:
                return False
            self._join()
            return True
        if action == "outage":
            return self._take_the_store_away()
        if action == "broker":
            return self._take_the_feed_away()
        active = [each for each in self._active() if each.has_opened]
        if len(active) < 2:
            return False
        # To kill one that is stopped has a meaning of its own: it never wakes up.
        stopped = [each for each in self._instances if each.wakes_at is not None]
        self._inflict(action, self._chance.choice(active + stopped * (action == "kill")))
        return True

    def _take_the_store_away(self) -> bool:
        if self._back_at is not None:
            return False
        self._outage.enter_context(next(self._kinds)())
        began = time.monotonic()
        ttl_s = self._script.settings["lease_ttl_s"]
        self._outages.append(Outage(began=began, ended=inf, ttl_s=ttl_s))
        self._back_at = began + self._chance.uniform(*self._script.outage_s)
        self._note("outage", "store")
        return True

    def _give_the_store_back(self) -> None:
        self._back_at = None
        self._outages[-1] = replace(self._outages[-1], ended=time.monotonic())
        self._outage.close()
        self._note("back", "store")

    def _take_the_feed_away(self) -> bool:
        if self._feed_back_at is not None:
            return False
        self._feed_outage.enter_context(next(self._feed_kinds)())
        self._feed_back_at = time.monotonic() + self._chance.uniform(*self._script.outage_s)
        self._note("broker", "feed")
        return True

    def _give_the_feed_back(self) -> None:
        self._feed_back_at = None
        self._feed_outage.close()
        self._note("back", "feed")
        if self.done["broker"] == 1:
            # Brokers take their time to start: what comes after it is to be seen as well.
            self._until = max(self._until, time.monotonic() + self._script.seconds / 2)

    def _inflict(self, action: Action, victim: Instance) -> None:
        self._note(action, victim.life.instance)
        if action == "kill":
            victim.life.killed = True
            victim.wakes_at = None
            victim.process.popen.kill()
            victim.process.popen.wait()
        elif action == "pause":
            now = time.monotonic()
            victim.life.pauses.append((now, inf))
            victim.wakes_at = now + self._chance.uniform(*self._script.pause_s)
            victim.process.popen.send_signal(signal.SIGSTOP)
        else:
            self._stop(victim)

    def _stop(self, instance: Instance) -> None:
        instance.leaving = True
        instance.process.popen.send_signal(signal.SIGTERM)

    def _join(self) -> None:
        """A new instance, or one that comes back under its name: after it ended, or started again
        elsewhere while the old process only seems to be dead."""
        chance = self._chance
        names = {each.name for each in self._instances}
        taken = {
            each.name for each in self._instances if each.process.running and each.wakes_at is None
        }
        free = sorted(names - taken)
        name = chance.choice(free) if free and chance.random() < 0.4 else f"i{len(names)}"
        label = f"{name}-{len(self._instances)}"
        log = self._folder / f"{label}.log"
        said = {
            "feed": self._feed.url,
            "store": self._store_url,
            "group": GROUP.name,
            "instance": name,
            "log": str(log),
            "work_s": chance.choice(WORK_S),
            "seed": chance.randrange(1 << 32),
            "handler": chance.choice(HANDLERS),
            "checkpoint": chance.choice(CHECKPOINTS),
            "settings": dict(self._script.settings),
        }
        process = self._processes.start(label, "instance", json.dumps(said))
        joined = Instance(name=name, process=process, life=Life(instance=label), log=log)
        self._instances.append(joined)
        self._note("join", label)

    def _look_after(self) -> None:
        """Wake up whoever was stopped for long enough. Nobody may end uncalled."""
        if self._back_at is not None and time.monotonic() >= self._back_at:
            self._give_the_store_back()
        if self._feed_back_at is not None and time.monotonic() >= self._feed_back_at:
            self._give_the_feed_back()
        for each in self._instances:
            if each.wakes_at is not None and time.monotonic() >= each.wakes_at:
                self._wake(each)
            code = each.process.popen.poll()
            called = (
                code is None
                or (code == 0 and each.leaving)
                or (code == -signal.SIGKILL and each.life.killed)
                or (code == REPLACED and self._is_replaced(each))
                # Told to stop when it was about to end by itself, and no longer caught signals,
                # or before it caught any.
                or (
                    code == -signal.SIGTERM
                    and each.leaving
                    and (self._is_replaced(each) or not each.log.exists())
                )
                or (code == -signal.SIGABRT and _aborted_while_opening(each))
            )
            if not called:
                raise WentWrong(f"{each.life.instance} ended: {code}\n{each.process.printed()}")

    def _is_replaced(self, instance: Instance) -> bool:
        later = self._instances[self._instances.index(instance) + 1 :]
        return any(each.name == instance.name for each in later)

    def _wake(self, instance: Instance) -> None:
        instance.wakes_at = None
        if instance.process.running:
            instance.process.popen.send_signal(signal.SIGCONT)
            since, _ = instance.life.pauses[-1]
            instance.life.pauses[-1] = since, time.monotonic()
            self._note("wake", instance.life.instance)

    def _finish(self) -> None:
        """Let the survivors catch up, then end them in order."""
        for each in self._instances:
            if each.wakes_at is not None:
                self._wake(each)
        with self._feed.opened() as feed:
            ends = {extent.partition: extent.end for extent in result_of(feed.extents())}

        def caught_up() -> bool:
            self._look_after()
            if not self._active():
                self._join()
            return self._sampler.checkpoints() == ends

        what = f"the checkpoints reach {ends}"
        try:
            wait_until(caught_up, what, moves=self._sampler.checkpoints)
        except WentWrong as error:
            leases = "\n".join(map(str, self._sampler.samples[-PARTITIONS:]))
            raise WentWrong(f"{error}\n{leases}\n{self._processes.stacks()}") from None
        for each in self._active():
            self._stop(each)
        wait_until(lambda: not any(each.process.running for each in self._instances), "all ended")
        self._look_after()

    def _active(self) -> list[Instance]:
        return [each for each in self._instances if each.active]

    def _note(self, what: str, whom: str) -> None:
        self.done[what] += 1
        with (self._folder / "journal.txt").open("a") as journal:
            at = time.monotonic()
            journal.write(f"{at - self._began:.3f} {at:.3f} {what} {whom}\n")

    def _held(self) -> dict[str, list[int]]:
        """What the feed holds, which has to be what the producer says it sent."""
        held: dict[str, list[int]] = {}
        with self._feed.opened() as feed:
            for partition in (each.id for each in result_of(feed.partitions())):
                numbers = held[partition] = []
                position = result_of(feed.locate(partition, "earliest"))
                while len((batch := result_of(feed.read(partition, position, 10_000))).events):
                    numbers += [json.loads(event.body)["number"] for event in batch.events]
                    position = batch.next
        *_, last = self._sent.read_text().splitlines()
        if sorted(n for numbers in held.values() for n in numbers) != list(
            range(*json.loads(last))
        ):
            raise WentWrong(f"the feed does not hold what was sent, which is up to {last}")
        return held

    def _tenures(self) -> Iterator[Tenure]:
        for each in self._instances:
            yield from read_log(each.log, each.life)


def _aborted_while_opening(instance: Instance) -> bool:
    """Kafka's library ends the process if a broker dies in the middle of an answer about the
    cluster. It had not joined yet: nothing is known to it, and nothing may be lost by it."""
    printed = instance.process.printed()
    return LIBRARY_ABORTS in printed and not instance.log.exists()
