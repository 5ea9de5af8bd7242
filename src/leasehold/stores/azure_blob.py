"""Leases in Azure Blob Storage, in a group that stock Azure processors may share.

Fencing is by touch: whoever takes a lease first wins the ownership blob, then rewrites the
checkpoint blob under its epoch. From then on the former owner's checkpoints, conditional on the
ETag it knows, fail. A stock processor touches nothing and checks nothing, so against one we are
fenced only by our next renewal; and its checkpoint may go back, ours not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.clock import SystemClock
from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.errors import BadInput, LeaseholdError, StoreUnavailable
from leasehold.ports import Clock
from leasehold.stores import azure_layout as layout
from leasehold.stores.azure_container import Container, Settings, open_client
from leasehold.stores.azure_layout import Blob, Claim, Progress

if TYPE_CHECKING:
    from azure.storage.blob.aio import ContainerClient

R = TypeVar("R")

FORGET_MEMBERS_AFTER_S = 24 * 3600.0


class AzureBlobStore:
    def __init__(
        self,
        client: ContainerClient,
        *,
        prefix: str = "",
        foreign_ttl_s: float = layout.STOCK_TTL_S,
        timeout_s: float = 5.0,
        concurrency: int = 16,
        clock: Clock | None = None,
    ) -> None:
        """``foreign_ttl_s``: after how long a silent stock processor counts as gone."""
        self._blobs = Container(client, timeout_s=timeout_s, concurrency=concurrency)
        self.requests = self._blobs.requests
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._foreign_ttl_s = foreign_ttl_s
        self._clock = clock or SystemClock()
        self._watched: dict[str, dict[str, tuple[str, float]]] = {}
        """By group and blob: its ETag, and since when it was seen with that."""

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> AzureBlobStore:
        """``azure-blob://ACCOUNT/CONTAINER?api_version=…&prefix=…&endpoint=…``

        The secret comes from the environment. The container is made when first written to.
        """
        said = Settings.from_url(url)
        named = ("prefix", "foreign_ttl_s", "timeout_s")
        return cls(open_client(said), **({name: getattr(said, name) for name in named} | settings))

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        await _all(
            self._create("create", group, partition, start) for partition, start in starts.items()
        )

    async def snapshot(self, group: Group) -> Snapshot:
        snapshot, unfinished = await self._list(group)
        if unfinished:
            await _all(self._finish("snapshot", group, p, at) for p, at in unfinished.items())
            snapshot, _ = await self._list(group)
        return snapshot

    async def join(self, group: Group, member: Member) -> None:
        name = layout.member_name(self._prefix, group, member.instance)
        await self._blobs.make("join", name, layout.write_member(member), over=True)
        root = layout.root_name(self._prefix, group)
        others, _ = await self._blobs.list_under("join", f"{root}{layout.MEMBER}/")
        await _all(  # those who never left, or their blobs would pile up in every listing
            self._blobs.remove("join", blob.name, blob.etag)
            for blob in others
            if blob.age_s > FORGET_MEMBERS_AFTER_S
        )

    async def heartbeat(self, group: Group, member: Member) -> bool:
        name = layout.member_name(self._prefix, group, member.instance)
        metadata = layout.write_member(member)

        def renewed(blob: Blob) -> dict[str, str] | None:
            known = layout.read_member(blob)
            return metadata if known and known.incarnation == member.incarnation else None

        while True:
            if await self._rewrite("heartbeat", name, renewed) is not None:
                return True
            if name in self._blobs.seen:
                return False
            if await self._blobs.make("heartbeat", name, metadata) is not None:
                return True

    async def leave(self, group: Group, member: Member) -> None:
        name = layout.member_name(self._prefix, group, member.instance)
        while (blob := await self._blobs.look("leave", name)) is not None:
            known = layout.read_member(blob)
            if known is None or known.incarnation != member.incarnation:
                return
            if await self._blobs.remove("leave", name, blob.etag):
                return

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        if not owner:
            raise BadInput("an owner needs a name: in this layout an empty one means released")
        tries = [
            self._take("acquire", lease, Claim(owner=owner, ttl_s=ttl_s), lambda progress: progress)
            for lease in leases
        ]
        done = await asyncio.gather(*tries, return_exceptions=True)
        won = [lease for lease in done if isinstance(lease, Lease)]
        # A lease in hand must not be lost to another's trouble; with nothing won, say the trouble.
        failures = [f for f in done if isinstance(f, BaseException)]
        if failures and not (won and all(isinstance(f, StoreUnavailable) for f in failures)):
            raise failures[0]
        return won

    async def renew(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return _kept(await _all(self._renew(lease) for lease in leases))

    async def release(self, leases: Sequence[Lease]) -> None:
        await _all(self._release(lease) for lease in leases)

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return _kept(await _all(self._checkpoint(lease) for lease in leases))

    async def rewind(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        def back(to: Checkpoint) -> Callable[[Progress], Progress]:
            return lambda progress: replace(progress, checkpoint=to, attempts=0)

        return _kept(
            await _all(
                self._take("rewind", lease, Claim(ttl_s=lease.ttl_s), back(lease.checkpoint))
                for lease in leases
            )
        )

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        await self._as_holder(
            "split", parent, lambda at: replace(at, children=dict(children), holder=None)
        )
        # Marked just now or found marked: either way the split is decided, and to be finished.
        blob = self._blobs.seen.get(self._checkpoint_name(parent))
        progress = layout.read_progress(blob) if blob is not None else None
        if blob is None or progress is None or progress.children is None:
            return False
        await self._finish("split", parent.group, parent.partition, blob)
        return True

    async def groups(self) -> Sequence[Group]:
        blobs, _ = await self._blobs.list_under("groups", self._prefix)
        return layout.groups_of(self._prefix, blobs)

    async def close(self) -> None:
        await self._blobs.close()

    def _ownership_name(self, lease: Lease) -> str:
        return layout.ownership_name(self._prefix, lease.group, lease.partition)

    def _checkpoint_name(self, lease: Lease) -> str:
        return layout.checkpoint_name(self._prefix, lease.group, lease.partition)

    async def _list(self, group: Group) -> tuple[Snapshot, Mapping[str, Blob]]:
        root = layout.root_name(self._prefix, group)
        asked = self._clock.monotonic()
        blobs, date_s = await self._blobs.list_under("snapshot", root)
        blobs = self._watch(root, blobs, asked)
        self._blobs.remember(blob for blob in blobs if layout.MEMBER not in blob.name)
        return layout.snapshot_of(group, self._prefix, blobs, date_s, self._foreign_ttl_s)

    def _watch(self, root: str, blobs: Iterable[Blob], asked: float) -> list[Blob]:
        """Add what this process has seen itself, which is finer than the store's whole seconds. No
        two clocks are compared: both times are from here, and what it took to ask is left out."""
        before, now = self._watched.get(root, {}), self._clock.monotonic()
        after = self._watched[root] = {}
        aged = []
        for blob in blobs:
            etag, since = before.get(blob.name, ("", now))
            after[blob.name] = blob.etag, since if etag == blob.etag else now
            aged.append(replace(blob, watched_s=max(asked - after[blob.name][1], 0.0)))
        return aged

    async def _create(self, verb: str, group: Group, partition: str, start: Checkpoint) -> bool:
        """False: it was there."""
        name = layout.checkpoint_name(self._prefix, group, partition)
        metadata = layout.write_progress(group, partition, Progress(checkpoint=start))
        if await self._blobs.make(verb, name, metadata) is None:
            await self._check_existing(verb, name, partition, metadata)
            return False
        # A blob to claim from the start: stock processors claim a missing one less carefully.
        name = layout.ownership_name(self._prefix, group, partition)
        await self._blobs.make(verb, name, layout.write_claim(group, partition, Claim()))
        return True

    async def _check_existing(
        self, verb: str, name: str, partition: str, metadata: dict[str, str]
    ) -> None:
        while (blob := await self._blobs.look(verb, name)) is not None:
            if layout.is_folder(blob):
                raise BadInput(f"a folder stands where a lease belongs: remove {name}")
            names = layout.real_names(self._prefix, blob)
            if names is not None and names[1] != partition:
                raise BadInput(
                    f"partitions {names[1]!r} and {partition!r} differ only in case, and blob "
                    "names of this layout have none: use another lease store"
                )
            if layout.read_progress(blob) is not None:
                return
            # An entry without a position, left by some tool, would bar the lease for ever.
            if await self._blobs.change(verb, name, metadata, blob.etag) is not None:
                return

    async def _take(
        self, verb: str, lease: Lease, claim: Claim, edit: Callable[[Progress], Progress]
    ) -> Lease | None:
        """Change hands: win the ownership blob, then fence by touching the checkpoint blob."""
        before = await self._claim_at_version(verb, lease)
        if lease.version and before is None:
            return None
        point = self._blobs.seen.get(self._checkpoint_name(lease))
        point = point or await self._blobs.look(verb, self._checkpoint_name(lease))
        progress = layout.read_progress(point) if point is not None else None
        if point is None or progress is None or progress.children is not None:
            return None
        old = layout.read_claim(before) if before is not None else None
        epoch = layout.next_epoch(old, progress, (before or point).date_s)
        claim = replace(claim, epoch=epoch, weight=old.weight if old is not None else 1.0)
        won = await self._put_claim(verb, lease, claim, lease.version)
        if won is None:
            return None
        touched = None
        try:
            touched = await self._touch(verb, lease, claim, point, edit)
        finally:
            if touched is None:  # or it would stay owned and unread until it expires
                with suppress(LeaseholdError):
                    await self._put_claim(verb, lease, replace(claim, owner=None), won.etag)
        if touched is None:
            return None
        return layout.lease_of(lease.group, lease.partition, touched, claim, won)

    async def _claim_at_version(self, verb: str, lease: Lease) -> Blob | None:
        """The ownership blob as the lease was seen; None: changed since, or none then."""
        name = self._ownership_name(lease)
        blob = self._blobs.seen.get(name)
        if lease.version and (blob is None or blob.etag != lease.version):
            blob = await self._blobs.look(verb, name)
        return blob if blob is not None and blob.etag == lease.version else None

    async def _put_claim(self, verb: str, lease: Lease, claim: Claim, etag: str) -> Blob | None:
        metadata = layout.write_claim(lease.group, lease.partition, claim)
        if not etag:
            return await self._blobs.make(verb, self._ownership_name(lease), metadata)
        return await self._blobs.change(verb, self._ownership_name(lease), metadata, etag)

    async def _touch(
        self,
        verb: str,
        lease: Lease,
        claim: Claim,
        point: Blob | None,
        edit: Callable[[Progress], Progress],
    ) -> Progress | None:
        """Put the new epoch on the checkpoint blob. None: a later taker was there already."""
        while point is not None:
            progress = layout.read_progress(point)
            if progress is None or progress.children is not None or progress.epoch > claim.epoch:
                return None
            if progress.epoch == claim.epoch:  # sent twice, where an answer was lost on the way
                return progress if progress.holder == claim.owner else None
            mine = edit(replace(progress, holder=claim.owner, epoch=claim.epoch, ours=True))
            metadata = layout.write_progress(lease.group, lease.partition, mine)
            if await self._blobs.change(verb, point.name, metadata, point.etag) is not None:
                return mine
            point = await self._blobs.look(verb, point.name)
        return None

    async def _renew(self, lease: Lease) -> Lease | None:
        def renewed(blob: Blob) -> dict[str, str] | None:
            claim = layout.read_claim(blob)
            if not claim.held_by(lease):
                return None
            claim = replace(claim, ttl_s=lease.ttl_s, weight=lease.weight)
            return layout.write_claim(lease.group, lease.partition, claim)

        blob = await self._rewrite("renew", self._ownership_name(lease), renewed)
        if blob is None:
            return None
        point = self._blobs.seen.get(self._checkpoint_name(lease))
        progress = layout.read_progress(point) if point is not None else None
        if progress is not None and progress.held_by(lease):
            return layout.lease_of(
                lease.group, lease.partition, progress, layout.read_claim(blob), blob
            )
        return replace(lease, version=blob.etag, offered_to=None, age_s=0.0)

    async def _release(self, lease: Lease) -> None:
        def unheld(blob: Blob) -> dict[str, str] | None:
            progress = layout.read_progress(blob)
            if progress is None or not progress.held_by(lease):
                return None
            return layout.write_progress(
                lease.group, lease.partition, replace(progress, holder=None)
            )

        def unowned(blob: Blob) -> dict[str, str] | None:
            claim = layout.read_claim(blob)
            if not claim.held_by(lease):
                return None
            claim = replace(claim, owner=None, offered_to=lease.offered_to)
            return layout.write_claim(lease.group, lease.partition, claim)

        # The power to write first: once the lease is on offer, nothing of ours can come late.
        await self._rewrite("release", self._checkpoint_name(lease), unheld)
        await self._rewrite("release", self._ownership_name(lease), unowned)

    async def _checkpoint(self, lease: Lease) -> Lease | None:
        progress = await self._as_holder(
            "checkpoint", lease, lambda progress: layout.advance(progress, lease)
        )
        if progress is None:
            return None
        blob = self._blobs.seen.get(self._ownership_name(lease))
        return replace(
            lease,
            checkpoint=progress.checkpoint,
            advanced=progress.advanced,
            attempts=progress.attempts,
            version=blob.etag if blob is not None else lease.version,
        )

    async def _as_holder(
        self, verb: str, lease: Lease, edit: Callable[[Progress], Progress]
    ) -> Progress | None:
        """Rewrite a lease's progress if it is held. None: it is not, or not any more."""
        name = self._checkpoint_name(lease)
        blob, sure = self._blobs.seen.get(name), False
        while True:
            progress = layout.read_progress(blob) if blob is not None else None
            if blob is not None and progress is not None and (sure or progress.held_by(lease)):
                wanted = edit(progress)
                metadata = layout.write_progress(lease.group, lease.partition, wanted)
                if wanted == progress and sure:
                    return progress
                if wanted != progress and await self._blobs.change(verb, name, metadata, blob.etag):
                    return wanted
            # Not asked yet, or it changed: who holds the lease holds it on both blobs.
            blob, owning = await asyncio.gather(
                self._blobs.look(verb, name), self._blobs.look(verb, self._ownership_name(lease))
            )
            progress = layout.read_progress(blob) if blob is not None else None
            claimed = owning is not None and layout.read_claim(owning).held_by(lease)
            sure = claimed and progress is not None and progress.open_to(lease)
            if not sure:
                return None

    async def _rewrite(
        self, verb: str, name: str, edit: Callable[[Blob], dict[str, str] | None]
    ) -> Blob | None:
        """Change a blob while ``edit`` agrees to what it holds. None: it is gone or disagrees."""
        blob, fresh = self._blobs.seen.get(name), False
        while True:
            wanted = edit(blob) if blob is not None else None
            if blob is not None and wanted is not None:
                if (written := await self._blobs.change(verb, name, wanted, blob.etag)) is not None:
                    return written
            elif fresh:
                return None
            blob, fresh = await self._blobs.look(verb, name), True

    async def _finish(self, verb: str, group: Group, parent: str, blob: Blob) -> None:
        """Carry a marked split through; whoever comes by may do it, and doing it twice is well."""
        progress = layout.read_progress(blob)
        if progress is None or progress.children is None or progress.closed:
            return
        await _all(
            self._hand_on(verb, group, child, start) for child, start in progress.children.items()
        )
        await self._blobs.remove(verb, layout.ownership_name(self._prefix, group, parent))
        metadata = layout.write_progress(group, parent, replace(progress, closed=True))
        await self._blobs.change(verb, blob.name, metadata, blob.etag)

    async def _hand_on(self, verb: str, group: Group, child: str, start: Checkpoint) -> None:
        """A child that was made beside its parent, and that nobody ever held, takes over the
        parent's progress."""

        def moved(blob: Blob) -> dict[str, str] | None:
            progress = layout.read_progress(blob)
            if progress is None or not progress.untouched or progress.checkpoint == start:
                return None
            return layout.write_progress(group, child, replace(progress, checkpoint=start))

        if not await self._create(verb, group, child, start):
            await self._rewrite(verb, layout.checkpoint_name(self._prefix, group, child), moved)


async def _all(actions: Iterable[Awaitable[R]]) -> list[R]:
    """Run them all to their end, then raise what went wrong: what is to fix before what passes."""
    done = await asyncio.gather(*actions, return_exceptions=True)
    failures = [f for f in done if isinstance(f, BaseException)]
    failures.sort(key=lambda failure: isinstance(failure, StoreUnavailable))
    if failures:
        raise failures[0]
    return [result for result in done if not isinstance(result, BaseException)]


def _kept(leases: Iterable[Lease | None]) -> list[Lease]:
    return [lease for lease in leases if lease is not None]
