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
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.errors import BadInput, LeaseholdError, StoreUnavailable
from leasehold.local.azure import AzureSettings, open_client, seconds
from leasehold.local.blob import Blob
from leasehold.local.blob_container import BlobContainer
from leasehold.local.outcomes import outcomes, worst
from leasehold.ports import Renewed
from leasehold.settings import STORE_TIMEOUT_S
from leasehold.stores.azure_blob import layout, names
from leasehold.stores.azure_blob.layout import Claim, StoredProgress
from leasehold.stores.azure_blob.listing import groups_of, lease_of
from leasehold.stores.azure_blob.view import View

if TYPE_CHECKING:
    from azure.storage.blob.aio import ContainerClient

R = TypeVar("R")

FORGET_MEMBERS_AFTER_S = 24 * 3600.0


class AzureBlobStore:
    def __init__(
        self,
        connect: Callable[[], ContainerClient],
        *,
        prefix: str = "",
        foreign_ttl_s: float = layout.STOCK_TTL_S,
        timeout_s: float = STORE_TIMEOUT_S,
        concurrency: int = 32,
    ) -> None:
        """``connect`` makes a client for the container, once for each event loop that uses this.
        ``foreign_ttl_s``: after how long a silent stock processor counts as gone."""
        self._blobs = BlobContainer(connect, timeout_s=timeout_s, concurrency=concurrency)
        self.requests = self._blobs.requests
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._view = View(self._blobs, self._prefix, foreign_ttl_s)
        self._timeout_s = timeout_s

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> AzureBlobStore:
        """``azure-blob://ACCOUNT/CONTAINER?api_version=…&prefix=…&endpoint=…``

        The secret comes from the environment. The container is made when first written to.
        """
        said = AzureSettings.from_url(url, more=["foreign_ttl_s"])
        given: dict[str, Any] = {
            "prefix": said.prefix,
            "timeout_s": said.timeout_s,
            "foreign_ttl_s": seconds("foreign_ttl_s", said.more, layout.STOCK_TTL_S),
        } | settings
        open_client(said)  # so that a missing secret is noticed now, and not at the first request
        return cls(partial(open_client, said), **given)

    async def create(self, group: Group, starts: Mapping[str, Checkpoint]) -> None:
        if self._view.may_be_doubled(group):
            await self._view.look("create", group)  # or it might be made beside another spelling
        await _all(
            self._create("create", group, partition, start) for partition, start in starts.items()
        )

    async def snapshot(self, group: Group) -> Snapshot:
        found = await self._view.look("snapshot", group)
        if found.unfinished:
            await _all(self._finish("snapshot", group, p, at) for p, at in found.unfinished.items())
            found = await self._view.look("snapshot", group)
        return found.snapshot

    async def join(self, group: Group, member: Member) -> None:
        name = names.member_name(self._prefix, group, member.instance)
        await self._blobs.make("join", name, layout.write_member(member), over=True)
        root = names.root_name(self._prefix, group)
        others, _ = await self._blobs.list_under("join", f"{root}{names.MEMBER}/")
        await _all(  # those who never left, or their blobs would pile up in every listing
            self._blobs.remove("join", blob.name, blob.etag)
            for blob in others
            if blob.age_s > FORGET_MEMBERS_AFTER_S
        )

    async def heartbeat(self, group: Group, member: Member) -> bool:
        name = names.member_name(self._prefix, group, member.instance)
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
        name = names.member_name(self._prefix, group, member.instance)
        while (blob := await self._blobs.look("leave", name)) is not None:
            known = layout.read_member(blob)
            if known is None or known.incarnation != member.incarnation:
                return
            if await self._blobs.remove("leave", name, blob.etag):
                return

    async def acquire(self, leases: Sequence[Lease], owner: str, ttl_s: float) -> Sequence[Lease]:
        if not owner:
            raise BadInput("an owner needs a name: in this layout an empty one means released")
        tries = [self._take("acquire", lease, Claim(owner=owner, ttl_s=ttl_s)) for lease in leases]
        done = await outcomes(tries, self._timeout_s)
        return [lease for lease in done if isinstance(lease, Lease)]

    async def renew(self, leases: Sequence[Lease]) -> Renewed:
        done = await outcomes((self._renew(lease) for lease in leases), self._timeout_s)
        return Renewed(
            kept=tuple(lease for lease in done if isinstance(lease, Lease)),
            unknown={
                lease.partition: failure
                for lease, failure in zip(leases, done, strict=True)
                if isinstance(failure, Exception)
            },
        )

    async def release(self, leases: Sequence[Lease]) -> None:
        await _all(self._release(lease) for lease in leases)

    async def checkpoint(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return _kept(await _all(self._checkpoint(lease) for lease in leases))

    async def rewind(self, leases: Sequence[Lease]) -> Sequence[Lease]:
        return _kept(
            await _all(
                self._take("rewind", lease, Claim(ttl_s=lease.ttl_s), to=lease.checkpoint)
                for lease in leases
            )
        )

    async def split(self, parent: Lease, children: Mapping[str, Checkpoint]) -> bool:
        await self._as_holder(
            "split", parent, lambda at: replace(at, children=dict(children), holder=None)
        )
        # Marked just now or found marked: either way the split is decided, and to be finished.
        blob = self._blobs.seen.get(self._view.checkpoint_name(parent.group, parent.partition))
        progress = layout.read_progress(blob) if blob is not None else None
        if blob is None or progress is None or progress.children is None:
            return False
        await self._finish("split", parent.group, parent.partition, blob)
        return True

    async def groups(self) -> Sequence[Group]:
        blobs, _ = await self._blobs.list_under("groups", self._prefix)
        return groups_of(self._prefix, blobs)

    async def close(self) -> None:
        await self._blobs.close()

    async def _create(self, verb: str, group: Group, partition: str, start: Checkpoint) -> bool:
        """False: it was there."""
        name = self._view.checkpoint_name(group, partition)
        other = await self._view.other(verb, group, partition)
        progress = layout.further(StoredProgress(checkpoint=start), other)
        metadata = layout.write_progress(group, partition, progress)
        if await self._blobs.make(verb, name, metadata) is None:
            await self._check_existing(verb, name, partition, metadata)
            return False
        # A blob to claim from the start: stock processors claim a missing one less carefully.
        name = self._view.ownership_name(group, partition)
        await self._blobs.make(verb, name, layout.write_claim(group, partition, Claim()))
        return True

    async def _check_existing(
        self, verb: str, name: str, partition: str, metadata: dict[str, str]
    ) -> None:
        while (blob := await self._blobs.look(verb, name)) is not None:
            if layout.is_folder(blob):
                raise BadInput(f"a folder stands where a lease belongs: remove {name}")
            said = layout.real_names(self._prefix, blob)
            if said is not None and said[1] != partition:
                raise BadInput(
                    f"partitions {said[1]!r} and {partition!r} differ only in case, and blob "
                    "names of this layout have none: use another lease store"
                )
            if layout.read_progress(blob) is not None:
                return
            # An entry without a position, left by some tool, would bar the lease for ever.
            wanted = layout.others_keys(blob) | metadata
            if await self._blobs.change(verb, name, wanted, blob.etag) is not None:
                return

    async def _take(
        self, verb: str, lease: Lease, claim: Claim, to: Checkpoint | None = None
    ) -> Lease | None:
        """Change hands: win the ownership blob, then fence by touching the checkpoint blob, which
        stays where it is or is sent ``to`` a position."""
        await self._view.find(verb, lease.group)
        before = await self._claim_at_version(verb, lease)
        if lease.version and before is None:
            return None
        point = self._blobs.seen.get(self._view.checkpoint_name(lease.group, lease.partition))
        point = point or await self._blobs.look(
            verb, self._view.checkpoint_name(lease.group, lease.partition)
        )
        progress = layout.read_progress(point) if point is not None else None
        if point is None or progress is None or progress.children is not None:
            return None
        old = layout.read_claim(before) if before is not None else None
        epoch = layout.next_epoch(old, progress, (before or point).date_s)
        if old is not None:
            claim = replace(claim, weight=old.weight, kept=old.kept)
        claim = replace(claim, epoch=epoch)
        won = await self._put_claim(verb, lease, claim, lease.version)
        if won is None:
            return None
        touched = None
        try:
            edit = await self._edit_of(verb, lease, claim, to)
            touched = await self._touch(verb, lease, claim, point, edit)
        finally:
            if touched is None:  # or it would stay owned and unread until it expires
                with suppress(LeaseholdError):
                    await self._put_claim(verb, lease, replace(claim, owner=None), won.etag)
        if touched is None:
            return None
        return lease_of(lease.group, lease.partition, touched, claim, won)

    async def _edit_of(
        self, verb: str, lease: Lease, claim: Claim, to: Checkpoint | None
    ) -> Callable[[StoredProgress], StoredProgress]:
        other = await self._view.other(verb, lease.group, lease.partition)
        if to is None:
            return lambda now: layout.further(now, other)
        if other is not None and other.is_ahead_of(to):
            await self._send_other(verb, lease, claim.epoch, to)
        return lambda now: now.sent_to(to)

    async def _send_other(self, verb: str, lease: Lease, epoch: int, to: Checkpoint) -> None:
        """Take the other spelling back as well, or the group would go on where that is. It comes
        first: if this is cut short, our own blob is where it was, and the rewind can be repeated.
        And whoever reads there must not write its old position again."""
        group, partition = lease.group, lease.partition

        def unowned(blob: Blob) -> dict[str, str]:
            claim = layout.read_claim(blob)
            claim = replace(claim, owner=None, epoch=max(claim.epoch, epoch))
            return layout.write_claim(group, partition, claim)

        def sent(blob: Blob) -> dict[str, str] | None:
            progress = layout.read_progress(blob)
            if progress is None or not progress.is_ahead_of(to):
                return None
            progress = replace(progress, holder=None, epoch=max(progress.epoch, epoch))
            return layout.write_progress(group, partition, progress.sent_to(to))

        await self._rewrite(verb, self._view.other_ownership_name(group, partition), unowned)
        await self._rewrite(verb, self._view.other_checkpoint_name(group, partition), sent)

    async def _claim_at_version(self, verb: str, lease: Lease) -> Blob | None:
        """The ownership blob as the lease was seen; None: changed since, or none then."""
        name = self._view.ownership_name(lease.group, lease.partition)
        blob = self._blobs.seen.get(name)
        if lease.version and (blob is None or blob.etag != lease.version):
            blob = await self._blobs.look(verb, name)
        return blob if blob is not None and blob.etag == lease.version else None

    async def _put_claim(self, verb: str, lease: Lease, claim: Claim, etag: str) -> Blob | None:
        metadata = layout.write_claim(lease.group, lease.partition, claim)
        if not etag:
            return await self._blobs.make(
                verb, self._view.ownership_name(lease.group, lease.partition), metadata
            )
        return await self._blobs.change(
            verb, self._view.ownership_name(lease.group, lease.partition), metadata, etag
        )

    async def _touch(
        self,
        verb: str,
        lease: Lease,
        claim: Claim,
        point: Blob | None,
        edit: Callable[[StoredProgress], StoredProgress],
    ) -> StoredProgress | None:
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
        await self._view.find("renew", lease.group)

        def renewed(blob: Blob) -> dict[str, str] | None:
            claim = layout.read_claim(blob)
            if not claim.held_by(lease):
                return None
            claim = replace(claim, ttl_s=lease.ttl_s, weight=lease.weight)
            return layout.write_claim(lease.group, lease.partition, claim)

        blob = await self._rewrite(
            "renew", self._view.ownership_name(lease.group, lease.partition), renewed
        )
        if blob is None:
            return None
        point = self._blobs.seen.get(self._view.checkpoint_name(lease.group, lease.partition))
        progress = layout.read_progress(point) if point is not None else None
        if progress is not None and progress.held_by(lease):
            return lease_of(lease.group, lease.partition, progress, layout.read_claim(blob), blob)
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

        await self._view.find("release", lease.group)
        # The power to write first: once the lease is on offer, nothing of ours can come late.
        await self._rewrite(
            "release", self._view.checkpoint_name(lease.group, lease.partition), unheld
        )
        await self._rewrite(
            "release", self._view.ownership_name(lease.group, lease.partition), unowned
        )

    async def _checkpoint(self, lease: Lease) -> Lease | None:
        progress = await self._as_holder(
            "checkpoint", lease, lambda progress: layout.advance(progress, lease)
        )
        if progress is None:
            return None
        blob = self._blobs.seen.get(self._view.ownership_name(lease.group, lease.partition))
        return replace(
            lease,
            checkpoint=progress.checkpoint,
            advanced=progress.advanced,
            attempts=progress.attempts,
            version=blob.etag if blob is not None else lease.version,
        )

    async def _as_holder(
        self, verb: str, lease: Lease, edit: Callable[[StoredProgress], StoredProgress]
    ) -> StoredProgress | None:
        """Rewrite a lease's progress if it is held. None: it is not, or not any more."""
        await self._view.find(verb, lease.group)
        name = self._view.checkpoint_name(lease.group, lease.partition)
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
                self._blobs.look(verb, name),
                self._blobs.look(verb, self._view.ownership_name(lease.group, lease.partition)),
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
        metadata = layout.write_progress(group, parent, replace(progress, closed=True))
        with suppress(StoreUnavailable):  # nobody needs the parent's any more; whoever looks next
            await self._blobs.remove(verb, self._view.ownership_name(group, parent))
            await self._blobs.change(verb, blob.name, metadata, blob.etag)

    async def _hand_on(self, verb: str, group: Group, child: str, start: Checkpoint) -> None:
        """A child that was made beside its parent, and that nobody ever held, takes over the
        parent's progress."""

        def moved(blob: Blob) -> dict[str, str] | None:
            progress = layout.read_progress(blob)
            if progress is None or not progress.untouched or progress.checkpoint == start:
                return None
            return layout.write_progress(group, child, progress.sent_to(start))

        if not await self._create(verb, group, child, start):
            name = self._view.checkpoint_name(group, child)
            await self._rewrite(verb, name, moved)


async def _all(actions: Iterable[Awaitable[R]]) -> list[R]:
    """Run them all to their end, then raise what went wrong: what is to fix before what passes."""
    done = await asyncio.gather(*actions, return_exceptions=True)
    if failures := [f for f in done if isinstance(f, BaseException)]:
        raise worst(failures)
    return [result for result in done if not isinstance(result, BaseException)]


def _kept(leases: Iterable[Lease | None]) -> list[Lease]:
    return [lease for lease in leases if lease is not None]
