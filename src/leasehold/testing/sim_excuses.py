"""Which faults explain what would otherwise break a rule of a simulated group.

Each excuse is bound to its cause: to the instance, the partition and the time in which the cause
can have that effect. Whatever is wider hides real bugs: `sabotage.py` has some that wider ones hid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from leasehold.core.model import Lease
from leasehold.testing.sim_instance import Instance
from leasehold.testing.sim_world import GROUP, LATE_S, SLACK_S

if TYPE_CHECKING:
    from leasehold.testing.simulate import Simulation


class SimExcuses:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim

    def explain_robbery(
        self, lease: Lease, robber: str, *, renewed_at: float, since: float
    ) -> bool:
        """Whether it is right that ``robber`` takes that lease, which its owner got at ``since``.

        What was renewed lately may be taken only from an owner that should have let go for all of
        ``shed_timeout_s``, or that is no member. What was not, from an owner that left, crashed or
        could not renew because of a fault of its own; an outage, a sleep of all or a step of the
        store's clock is none. Only who starts up just then may err, for a while.
        """
        if any(self.misled(each) for each in self._lives(robber)):
            return True
        owners = [each for each in self._alive(lease.owner) if each.started_at <= renewed_at]
        if lease.age_s < self._sim.settings.fresh_s and not self._looked_old(robber, renewed_at):
            return self._overruled(lease, robber, owners, since)
        return not owners or any(
            self._could_not_renew(each, lease.partition, robber, renewed_at)
            or (renewed_at <= since and self._got_by_another(each, lease.partition, since))
            for each in owners
        )

    def _looked_old(self, robber: str, renewed_at: float) -> bool:
        """Whether its first look showed that lease as older than it is."""
        aged, now = self._sim.chaos.aged, self._sim.clock.monotonic()
        return any(
            aged(renewed_at, each.started_at) and now < each.started_at + self._renewal_s
            for each in self._lives(robber)
        )

    def _overruled(
        self, lease: Lease, robber: str, owners: Sequence[Instance], since: float
    ) -> bool:
        store, now = self._sim.store, self._sim.clock.monotonic()
        member = any(each.instance == lease.owner for each in store.look(GROUP).members)
        if not owners and not member:
            return True  # a claim that outlived its sender, which has left
        lately = now - self._sim.settings.shed_timeout_s
        waited = since <= lately and any(each.started_at <= lately for each in self._lives(robber))
        return waited and (
            not owners
            or any(
                each.stubborn or each.clock.paused or max(each.excused_at, each.woken_at) > lately
                for each in owners
            )
            or self._sim.chaos.unlocked_at.get(lease.partition, -inf) > lately
        )

    def _could_not_renew(
        self, owner: Instance, partition: str, robber: str, renewed_at: float
    ) -> bool:
        if owner.clock.paused:
            return True
        causes = [owner.severed_at, self._sim.chaos.unlocked_at.get(partition, -inf)]
        if owner.slept_with and set(self._alive(robber)) - owner.slept_with:
            causes.append(owner.woken_at)
        if any(self._explains(cause, renewed_at, owner, robber) for cause in causes):
            return True
        return self._was_dead(owner.woken_at, renewed_at, owner, robber)

    def _got_by_another(self, owner: Instance, partition: str, since: float) -> bool:
        """Whether an older life of that name got it when the newer one had replaced it already,
        and that one was leaving before it could take it again."""
        replaced = any(
            each.started_at < owner.started_at <= since <= each.ended_at + LATE_S
            for each in self._lives(owner.name)
            if each is not owner and not each.crashed
        )
        unaware = partition not in owner.host.workers
        return replaced and unaware and owner.stopped_at - since <= self._renewal_s

    def _explains(self, cause: float, renewed_at: float, owner: Instance, robber: str) -> bool:
        """Whether what ended then can be why nothing was renewed: it is not long over."""
        if cause < renewed_at:
            return False
        lately_s = self._sim.clock.monotonic() - cause
        return lately_s <= self._renewal_s or self._was_dead(cause, renewed_at, owner, robber)

    def _was_dead(self, until: float, renewed_at: float, owner: Instance, robber: str) -> bool:
        """Whether it was seen dead by then, before whatever has kept it from renewing since, by one
        that was awake: who came while all slept was, and who slept earlier, with others."""
        chances_s, now = self._sim.chaos.chances_s, self._sim.clock.monotonic()
        seen_s = chances_s(renewed_at, until, self._alive(robber))
        since_s = chances_s(until, now, [owner])
        return seen_s > self._sim.settings.fresh_s and since_s <= self._renewal_s

    @property
    def _renewal_s(self) -> float:
        """Within which an instance that is well again has renewed what it holds."""
        timing = self._sim.settings
        return timing.balance_interval_s + 2 * timing.request_timeout_s + SLACK_S

    def awake(self) -> dict[str, float]:
        """Instances with no excuse for working on after they lost a lease, and since when: not
        asleep in the middle of it, not hung, not misled, not one that runs beside its own
        successor."""
        newest = {each.name: each for each in self._sim.instances}
        alone = Counter(each.name for each in self._sim.instances if not each.crashed)
        return {
            name: max(each.woken_at, each.started_at)
            for name, each in newest.items()
            if each.running and not each.stubborn and not self.misled(each) and alone[name] == 1
        }

    def misled(self, instance: Instance) -> bool:
        """Whether it may still have what it took by a first look that showed the living as dead."""
        timing, now = self._sim.settings, self._sim.clock.monotonic()
        recent = now < instance.started_at + 2 * timing.lease_ttl_s
        return recent and self._sim.chaos.shook_newcomer(instance.started_at)

    def is_gone(self, name: str) -> bool:
        """Whether it said goodbye and ended, so long ago that everybody has looked since."""
        ended = all(each.task.done() for each in self._lives(name))
        ago_s = self._sim.clock.monotonic() - self._sim.store.goodbyes.get(name, inf)
        return ended and ago_s > self._renewal_s

    def hung_lately(self, instance: Instance) -> bool:
        """Whether reads of it can have hung three times in a row."""
        return instance.deaf or self._sim.clock.monotonic() - instance.deaf_until < LATE_S

    def _lives(self, name: str | None) -> list[Instance]:
        return [each for each in self._sim.instances if each.name == name]

    def _alive(self, name: str | None) -> list[Instance]:
        return [each for each in self._lives(name) if not each.crashed and not each.task.done()]
