"""What must hold in a simulated group, beside what its watching store checks with every request.

While things go wrong: no partition is left alone for long, and who is asked to stop does. After
calm: everything is handled, the spread is at most one, and nothing moves that need not.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from leasehold.core.balance import leasable, spread
from leasehold.core.model import Lease
from leasehold.testing.sim_world import GROUP, MAX_EVENTS, SLACK_S

if TYPE_CHECKING:
    from leasehold.testing.simulate import Simulation

UNREAD_S = 25.0
"""Three reads without an answer, the pauses between them, and until another has it."""

UNSAVED_S = 9.0
"""A checkpoint that is due may wait for a batch in hand, for a request that gets no answer and for
the pause after it, and for a read that hangs."""

PRODUCE_S = 10.0
"""How long events come after one more change."""

CALM_S = 300.0
"""Whatever was wrong when calm came is over after as long, at the latest."""


class SimRules:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._moves_before: Counter[str] = Counter()
        self._unread: dict[str, tuple[float, set[str]]] = {}
        """By partition: since when it is not read, and by whom in turn."""

    def broken(self, text: str) -> None:
        self._sim.store.violations.append(text)

    # At any time

    async def check(self) -> None:
        await self._check_owned()
        self._check_read()
        self._check_saved()
        self._check_stopping()

    async def _check_owned(self) -> None:
        """No partition without a working owner for long, while a healthy instance lives."""
        store, timing, now = self._sim.store, self._sim.settings, self._sim.clock.monotonic()
        bound = timing.lease_ttl_s + 2 * timing.balance_interval_s + SLACK_S
        for lease in leasable(store.look(GROUP), await self._sim.feed.partitions()):
            if self._works(lease) or lease.partition in store.locked:
                store.unowned_since.pop(lease.partition, None)
                continue
            since = store.unowned_since.setdefault(lease.partition, now)
            for each in self._sim.instances:
                if each.usable and now - max(since, each.healthy_since) > bound:
                    self.broken(
                        f"nobody works on {lease.partition} since {since:.1f} s "
                        f"(owner {lease.owner}), although {each.name} is healthy"
                    )

    def _works(self, lease: Lease) -> bool:
        """Whether its owner is running, knows that it has the lease and may begin work under it; or
        has an excuse."""
        now = self._sim.clock.monotonic()
        for each in self._sim.instances:
            if each.name == lease.owner and each.running and lease.live:
                worker = each.host.workers.get(lease.partition)
                known = worker is not None and worker.hold.lease.epoch == lease.epoch
                if worker and known and now < worker.hold.until:
                    return True
                if now - each.healthy_since < self._sim.settings.lease_ttl_s:
                    return True
        return False

    def _check_read(self) -> None:
        """What hangs at one instance is read by another, if a healthy one lives."""
        sim, now = self._sim, self._sim.clock.monotonic()
        newest = {each.name: each for each in sim.instances}
        for lease in sim.store.look(GROUP).leases:
            partition, owner = lease.partition, newest.get(lease.owner or "")
            all_there_is = sim.feed.end[partition] - sim.feed.first[partition]
            behind = len(sim.store.handled[partition]) < all_there_is
            if lease.owner is None:
                continue  # on its way; that alone does not help
            # One that hangs or sleeps cannot let go; that nobody works then is another rule's.
            deaf = owner is not None and owner.running and owner.deaf and not owner.stubborn
            if not behind or partition in sim.store.locked or not deaf:
                self._unread.pop(partition, None)
                continue
            since, owners = self._unread.setdefault(partition, (now, set()))
            owners.add(lease.owner)  # each of them has to find out for itself
            for each in sim.instances:
                well = each.usable and not each.deaf and not each.stubborn
                if well and now - max(since, each.healthy_since) > UNREAD_S * len(owners):
                    self.broken(
                        f"{lease.owner} gets no answer for {partition} since {since:.1f} s and "
                        f"keeps it, although {each.name} is healthy"
                    )

    def _check_saved(self) -> None:
        """What is handled is stored as soon as the policy wants it. That bounds what a takeover
        repeats, whatever became of the owner."""
        sim, policy, now = self._sim, self._sim.policy, self._sim.clock.monotonic()
        if policy.manual:
            return
        newest = {each.name: each for each in sim.instances}
        for lease in sim.store.look(GROUP).leases:
            owner = newest.get(lease.owner or "")
            if owner is None or not owner.running or owner.stubborn or owner.deaf:
                continue
            worker = owner.host.workers.get(lease.partition)
            if worker is None or worker.hold.lease.epoch != lease.epoch:
                continue
            count, since = sim.store.unsaved(lease)
            seconds = inf if policy.events is not None else (policy.seconds or 0.0)
            waits_s = now - max(since, owner.healthy_since, owner.deaf_until)
            too_many = policy.events is not None and count > policy.events + MAX_EVENTS
            if lease.partition not in sim.store.locked and waits_s > seconds + UNSAVED_S:
                self.broken(f"{owner.name} has not stored what it handled of {lease.partition}")
            elif too_many:
                self.broken(f"{owner.name} has {count} events of {lease.partition} not stored")

    def _check_stopping(self) -> None:
        """Who is asked to stop does so soon; if its handlers hang or its records are locked, when
        its time for that is over."""
        timing, now = self._sim.settings, self._sim.clock.monotonic()
        for each in self._sim.instances:
            if not each.leaving or not each.running:
                continue
            since = max(each.stopped_at, each.troubled_at)
            bound = 3 * timing.balance_interval_s + SLACK_S
            if each.stubborn or not self._sim.store.locked.isdisjoint(each.host.workers):
                each.hindered_at = now
                bound = timing.drain_timeout_s + timing.balance_interval_s
                bound += timing.request_timeout_s + SLACK_S
            else:
                since = max(since, each.hindered_at)
            if now - since > bound:
                self.broken(f"{each.name} was asked to stop at {each.stopped_at:.1f} s and has not")

    # After calm

    async def settle(self) -> None:
        """Everything handled and evened out within two intervals after all know who is left. Then
        nothing moves; and after one more change as much as must."""
        timing = self._sim.settings
        self._moves_before = Counter(self._sim.store.moves_of)
        await self._wait_until_even()
        moves_of = self._sim.store.moves_of
        moved = [p for p in moves_of if moves_of[p] - self._moves_before[p] > 3]
        if moved:
            # Once as it has no owner, once by what was believed of the members before, and once by
            # what is true: that of another dead owner's is free late, for one.
            self.broken(f"after calm {moved} moved more than three times")
        await self._check_moves("nothing changed", 0, 10 * timing.balance_interval_s)
        if not self._sim.store.violations:
            await self._change_once()

    async def _change_once(self) -> None:
        """While events come. None is handled twice, but what a crash had left unsaved, and by users
        who checkpoint by hand what they had not yet when it moved."""
        sim, before = self._sim, self._sim.store.redelivered
        sim.produce_until = inf
        sim.spawn(sim.produce())
        change = await sim.chaos.change_once()
        sim.produce_until = sim.clock.monotonic() + PRODUCE_S
        needed = await self._fewest()
        await self._check_moves(change, needed, 3 * sim.settings.lease_ttl_s)
        await self._check_even()
        if unhandled := sim.unhandled():
            self.broken(f"not all was handled after {change}: {unhandled}")
        explained = change == "somebody crashed" or (needed > 0 and sim.policy.manual)
        if (again := sim.store.redelivered - before) and not explained:
            self.broken(f"{again} events were handled twice after {change}")

    async def _wait_until_even(self) -> None:
        sim, timing = self._sim, self._sim.settings
        calm = left_at = sim.clock.monotonic()
        while not sim.store.violations:
            await sim.watch(0.5)
            now = sim.clock.monotonic()
            for partition in self._to_and_fro(now):
                self._moves_before[partition] = sim.store.moves_of[partition]
            left_at = max(left_at, *(x.host.offers.over_at for x in sim.instances if x.usable))
            dead_until = self._dead_until(now)
            if calm + timing.lease_ttl_s < dead_until > now:
                # Somebody who died before seems to have come, and then to go.
                self._moves_before = Counter(sim.store.moves_of)
            left_at = max(left_at, dead_until)
            known_at = max(calm + timing.lease_ttl_s, sim.store.replaced_at, left_at)
            if now > known_at + 2 * timing.balance_interval_s + SLACK_S:
                # A user may take its time to checkpoint the end of what was split.
                leased = {lease.partition for lease in sim.store.look(GROUP).leases}
                unsplit = set(sim.feed.leaves()) - leased
                if not (unhandled := sim.unhandled()) and not unsplit:
                    return await self._check_even()
                if now > calm + CALM_S:
                    self.broken(f"not all was handled: {unhandled}, no leases: {sorted(unsplit)}")
            elif now > calm + CALM_S:
                self.broken(f"{now - calm:.0f} s after calm not all know who is left")
        return None

    def _to_and_fro(self, now: float) -> set[str]:
        """What may still move more often than it should: what hung at somebody is left to others
        for a while; what two instances of one name take for their own, until the older one stops.
        """
        instances = self._sim.instances
        given_up = {p for each in instances for p in each.host.offers.given_up(now)}
        lives = Counter(each.name for each in instances if each.running)
        leases = self._sim.store.look(GROUP).leases
        return given_up | {x.partition for x in leases if x.owner and lives[x.owner] > 1}

    def _dead_until(self, now: float) -> float:
        """Until when the dead seem alive: a request may outlive its sender by seconds."""
        running = {each.name for each in self._sim.instances if each.running}
        look = self._sim.store.look(GROUP)
        named = [(x.instance, x) for x in look.members] + [(x.owner, x) for x in look.leases]
        dead = [record for name, record in named if name is not None and name not in running]
        return max((now - each.age_s + each.ttl_s for each in dead), default=0.0)

    async def _check_even(self) -> None:
        snapshot, known = self._sim.store.look(GROUP), await self._sim.feed.partitions()
        uneven = spread(snapshot, known)
        idle = [lease.partition for lease in snapshot.leases if not lease.live]
        if uneven > 1 or idle:
            self.broken(f"uneven by {uneven}, unowned {idle}, two intervals after calm")

    async def _check_moves(self, why: str, needed: int, seconds: float) -> None:
        sim, before = self._sim, self._sim.store.moves
        await sim.watch(seconds)
        if (moves := sim.store.moves - before) != needed:
            self.broken(f"{moves} moves instead of {needed} after {why}")

    async def _fewest(self) -> int:
        """Moves that an even spread over those who are left needs from here."""
        leases = leasable(self._sim.store.look(GROUP), await self._sim.feed.partitions())
        owned = {each.name: 0 for each in self._sim.instances if each.usable}
        owned |= Counter(x.owner for x in leases if x.owner in owned)
        share, over = divmod(len(leases), len(owned))
        counts = sorted(owned.values(), reverse=True)
        kept = sum(min(n, share + (place < over)) for place, n in enumerate(counts))
        return len(leases) - kept
