"""What goes wrong in a simulated group: each disturbance begins, lasts a while and ends.

A new one is a method here and a line in ``disturb``; whatever it leaves behind, ``end`` mends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from math import inf
from typing import TYPE_CHECKING, Any

from leasehold.testing.sim_instance import Instance
from leasehold.testing.sim_world import GROUP

if TYPE_CHECKING:
    from leasehold.testing.simulate import Simulation

NEWCOMER_S = 4.0


class Chaos:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.down = self.silent = False
        """The store cannot be reached; it does not even refuse."""
        self.unlocked_at: dict[str, float] = {}
        self._down_at = self._shaken_at = -inf
        self._set_forth_at: list[float] = []
        self._hindered: list[tuple[float, float]] = []
        """From when to when nobody could renew, in order; these may overlap."""
        self._slept: list[tuple[float, float, frozenset[Instance]]] = []
        """From when to when all slept who were there at its beginning, and who that was."""

    def shook_newcomer(self, started_at: float) -> bool:
        """Whether an instance started so close to the end of an outage or a step of the clock that
        its first look showed the living as dead, before they could say otherwise."""
        return self._shaken_at - 2.0 < started_at < self._shaken_at + NEWCOMER_S

    def aged(self, renewed_at: float, started_at: float) -> bool:
        """Whether the store's clock was set forth between these, so that what was renewed before
        looks older than it is to who started after it."""
        return any(renewed_at < at <= started_at for at in self._set_forth_at)

    def chances_s(self, since: float, until: float, who: Collection[Instance]) -> float:
        """For how long between these one of them could have renewed, or have seen that another did
        not, unless by a fault of its own."""
        slept = [(began, ended) for began, ended, all_ in self._slept if all_.issuperset(who)]
        open_s, at = 0.0, since
        for began, ended in sorted(self._hindered + slept):
            open_s += max(min(began, until) - at, 0.0)
            at = max(at, ended)
        return open_s + max(until - at, 0.0)

    def disturb(self) -> None:
        usable = [each for each in self._sim.instances if each.usable]
        kinds: list[tuple[int, Callable[[], Any]]] = [
            (1, lambda: self._sim.spawn(self._outage())),
            (1, lambda: self._sim.spawn(self._suspend_all())),
            (1, self._step_clock),
            (1, lambda: self._sim.spawn(self._lock())),
            (1, self._add_partition),
            (1, self._split),
        ]
        if len(usable) < 8:
            kinds.append((4, self._sim.start))
        if usable:
            one = self._sim.chance.choice(usable)
            kinds.append((3, lambda: self._sim.spawn(self._bad_network(one))))
            kinds.append((1, lambda: self._sim.spawn(self._stubborn(one))))
            kinds.append((1, lambda: self._sim.spawn(self._deaf(one))))
        if len(usable) > 1:
            kinds += [
                (2, lambda: self._sim.leave(one)),
                (2, lambda: self._sim.spawn(self._leave_late(one))),
                (2, lambda: self._crash(one)),
                (3, lambda: self._sim.spawn(self._pause(one))),
                (1, lambda: self._sim.start(one.name)),
            ]
        if gone := [each.name for each in self._sim.instances if each.crashed]:
            kinds.append((1, lambda: self._sim.start(self._sim.chance.choice(gone))))
        weights = [weight for weight, _ in kinds]
        self._sim.chance.choices([do for _, do in kinds], weights)[0]()

    def _crash(self, instance: Instance) -> None:
        self._sim.fault(instance, "crash")
        self._sim.disturbance(f"{instance.name} crashes")
        instance.crashed = True
        instance.clock.pause()

    async def _pause(self, instance: Instance) -> None:
        self._sim.fault(instance, "pause")
        instance.slept_with = frozenset()
        self._sim.disturbance(f"{instance.name} is paused")
        instance.clock.pause()
        await asyncio.sleep(self._sim.chance.uniform(1, 30))
        self._sim.wake(instance)

    async def _bad_network(self, instance: Instance) -> None:
        self._sim.disturbance(f"{instance.name} has a bad network")
        network = instance.network
        network.fail_before, network.fail_after, network.stall = 0.2, 0.2, 0.05
        network.partial = self._sim.chance.choice([0.0, 0.3])
        await asyncio.sleep(self._sim.chance.uniform(3, 12))
        network.fail_before = network.fail_after = network.stall = network.partial = 0.0
        self._sim.disturbance(f"{instance.name} has a good network again")

    async def _outage(self) -> None:
        """Shorter or longer than the time to live."""
        if self.down:
            return
        chance, self.down = self._sim.chance, True
        self.silent = chance.random() < 0.3
        self._sim.disturbance(f"the store is down{' and silent' if self.silent else ''}")
        for instance in self._sim.instances:
            instance.network.outage, instance.network.silent = True, self.silent
        self._down_at = self._sim.clock.monotonic()
        await asyncio.sleep(chance.choice([chance.uniform(1, 9), chance.uniform(9, 40)]))
        self._store_is_up()

    def _store_is_up(self) -> None:
        if self.down:
            self._sim.disturbance("the store is up")
            self.down, self._shaken_at = False, self._sim.clock.monotonic()
            # What was sent into the silence is given up only now.
            late_s = self._sim.settings.request_timeout_s if self.silent else 0.0
            self._hindered.append((self._down_at, self._shaken_at + late_s))
            for instance in self._sim.instances:
                instance.network.outage = False
                instance.troubled_at = max(instance.troubled_at, self._shaken_at + late_s)

    def _step_clock(self) -> None:
        self._shaken_at = self._sim.clock.monotonic()
        step_s = self._sim.chance.choice([-1, 1]) * self._sim.chance.uniform(1, 60)
        self._sim.store.ticking.off_s += step_s
        if step_s > 0:
            self._set_forth_at.append(self._shaken_at)
        self._sim.faults["clock step"] += 1
        self._sim.disturbance(f"the store's clock is set by {step_s:+.1f} s")

    async def _lock(self) -> None:
        leases = self._sim.store.look(GROUP).leases
        if not leases:
            return
        partition = self._sim.chance.choice(leases).partition
        self._sim.faults["locked"] += 1
        self._sim.disturbance(f"somebody locks the lease of {partition}")
        self._sim.store.locked.add(partition)
        try:
            await asyncio.sleep(self._sim.chance.uniform(2, 60))
        finally:
            self._sim.disturbance(f"the lease of {partition} is free again")
            self._sim.store.locked.discard(partition)
            now = self.unlocked_at[partition] = self._sim.clock.monotonic()
            for each in self._sim.instances:
                if partition in each.host.workers:
                    each.troubled_at = now

    async def _suspend_all(self) -> None:
        """A laptop that is closed: everybody sleeps, and wakes up at the same moment."""
        asleep = [each for each in self._sim.instances if each.running]
        for instance in asleep:
            self._sim.fault(instance, "suspended")
            instance.slept_with = frozenset(asleep)
            instance.clock.pause()
        self._sim.disturbance("everybody is suspended")
        began = self._sim.clock.monotonic()
        try:
            await asyncio.sleep(self._sim.chance.uniform(2, 60))
        finally:
            self._slept.append((began, self._sim.clock.monotonic(), frozenset(asleep)))
        for instance in asleep:
            self._sim.wake(instance)

    async def _leave_late(self, instance: Instance) -> None:
        """It is asked to stop while a handler hangs, and leaves without having let go."""
        self._sim.fault(instance, "hung handler")
        instance.stubborn = True
        self._sim.leave(instance)
        await asyncio.sleep(self._sim.chance.uniform(20, 45))
        instance.stubborn = False
        instance.troubled_at = instance.woken_at = self._sim.clock.monotonic()

    async def _stubborn(self, instance: Instance) -> None:
        self._sim.fault(instance, "hung handler")
        self._sim.disturbance(f"{instance.name} does not let go")
        instance.stubborn = True
        await asyncio.sleep(self._sim.chance.uniform(5, 40))
        self._sim.disturbance(f"{instance.name} lets go again")
        instance.stubborn = False
        instance.troubled_at = instance.woken_at = self._sim.clock.monotonic()

    async def _deaf(self, instance: Instance) -> None:
        self._sim.fault(instance, "hung read")
        self._sim.disturbance(f"{instance.name} gets no answer from the feed")
        instance.deaf = True
        await asyncio.sleep(self._sim.chance.uniform(5, 60))
        self._sim.disturbance(f"{instance.name} gets answers from the feed again")
        instance.deaf, instance.deaf_until = False, self._sim.clock.monotonic()

    def _add_partition(self) -> None:
        if len(self._sim.feed.leaves()) < 32:
            self._sim.disturbance(f"partition {self._sim.feed.add()} appears")

    def _split(self) -> None:
        # Here a child does not repeat its parent's events, so the group must know the parent.
        leased = {lease.partition for lease in self._sim.store.look(GROUP).leases}
        leaves = [leaf for leaf in self._sim.feed.leaves() if leaf in leased]
        if leaves and len(self._sim.feed.leaves()) < 32:
            leaf = self._sim.chance.choice(leaves)
            self._sim.feed.split(leaf)
            self._sim.disturbance(f"partition {leaf} splits")

    async def change_once(self) -> str:
        """One thing that happens to a group that is well, and over; what it was."""
        sim, usable = self._sim, [each for each in self._sim.instances if each.usable]
        one = sim.chance.choice(usable)
        kinds: dict[str, Callable[[], Any]] = {
            "an outage of the store": self._outage,
            "a suspension of all": self._suspend_all,
            "a step of the store's clock": self._step_clock,
            "somebody joined": sim.start,
        }
        if len(usable) > 1:
            kinds["somebody left"] = lambda: sim.leave(one)
            kinds["somebody crashed"] = lambda: self._crash(one)
        kind = sim.chance.choice(list(kinds))
        happening = kinds[kind]()
        if asyncio.iscoroutine(happening):
            await happening
        return kind

    def end(self) -> None:
        """All that goes wrong stops at once, whatever was under way."""
        self._sim.cancel_spawned()
        for instance in self._sim.instances:
            if instance.stubborn:
                instance.stubborn = False
                instance.troubled_at = instance.woken_at = self._sim.clock.monotonic()
            if instance.deaf:
                instance.deaf, instance.deaf_until = False, self._sim.clock.monotonic()
            instance.network.fail_before = instance.network.fail_after = 0.0
            instance.network.stall = instance.network.partial = 0.0
            self._sim.wake(instance)
        self._store_is_up()
