"""What a listing of blobs says about a group: its leases, its members, its splits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from leasehold.core.model import Group, Lease, Member, Snapshot
from leasehold.local.blob import Blob
from leasehold.stores.azure_blob.layout import (
    Claim,
    StoredProgress,
    further,
    has_position,
    is_folder,
    read_claim,
    read_member,
    read_progress,
    real_names,
)
from leasehold.stores.azure_blob.names import (
    CHECKPOINT,
    MEMBER,
    OWNERSHIP,
    Spelling,
    fold,
    place_of,
    spelling_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    snapshot: Snapshot
    spelling: Spelling
    unfinished: Mapping[str, Blob]
    """Checkpoint blobs of splits that were begun and not finished, by partition."""


@dataclass(slots=True)
class _Blobs:
    """One spelling's blobs: of a partition each."""

    points: dict[str, Blob] = field(default_factory=dict)
    claims: dict[str, Blob] = field(default_factory=dict)


def read_listing(
    group: Group, prefix: str, blobs: Iterable[Blob], date_s: float, foreign_ttl_s: float
) -> Listing:
    blobs = [blob for blob in blobs if not is_folder(blob)]
    spelling = spelling_of(prefix, group, (blob.name for blob in blobs))
    plain, cased, members = _sorted_out(prefix, group, blobs)
    leases, replaced, unfinished = [], set(), {}
    for key in plain.points.keys() | cased.points.keys():
        here, other = (cased, plain) if spelling.keeps_case(key) else (plain, _Blobs())
        point, owning = here.points.get(key), here.claims.get(key)
        progress = read_progress(point) if point is not None else None
        if point is None or progress is None:
            continue
        names = real_names(prefix, point) or (owning and real_names(prefix, owning))
        partition = names[1] if names else key
        if progress.children is not None:
            replaced.add(partition)
            if not progress.closed:
                unfinished[partition] = point
            continue
        claim = Claim() if owning is None else read_claim(owning, foreign_ttl_s)
        lease = lease_of(group, partition, progress, claim, owning)
        lease = lease if owning is not None else replace(lease, age_s=point.age_s)
        leases.append(_with_other(lease, other, key, progress, foreign_ttl_s))
    return Listing(
        snapshot=Snapshot(
            leases=tuple(sorted(leases, key=lambda lease: lease.partition)),
            members=tuple(sorted(members, key=lambda member: member.instance)),
            taken_at=date_s,
            replaced=frozenset(replaced),
        ),
        spelling=spelling,
        unfinished=unfinished,
    )


def groups_of(prefix: str, blobs: Iterable[Blob]) -> tuple[Group, ...]:
    """Every group with a lease, in its own case where any of its blobs still says it.

    One that a newer version writes to is named all the same, so that it hides no other.
    """
    said: dict[Group, Group] = {}
    spelled: dict[Group, Group] = {}
    for blob in blobs:
        if (place := place_of(prefix, blob.name)) is None:
            continue
        key = fold(place.group)
        if names := real_names(prefix, blob):
            said.setdefault(key, names[0])
        if place.kind == CHECKPOINT and has_position(blob) and "lhchildren" not in blob.metadata:
            # Capitals sort before small letters: the spelling that keeps the case tells more.
            spelled[key] = min(spelled.get(key, place.group), place.group)
    return tuple(sorted(said.get(key, group) for key, group in spelled.items()))


def lease_of(
    group: Group, partition: str, progress: StoredProgress, claim: Claim, blob: Blob | None
) -> Lease:
    """``blob`` is the claim's; None where nobody ever claimed."""
    return Lease(
        group=group,
        partition=partition,
        checkpoint=progress.checkpoint,
        owner=claim.owner,
        epoch=max(claim.epoch, progress.epoch),
        version=blob.etag if blob is not None else "",
        advanced=progress.advanced,
        attempts=progress.attempts,
        offered_to=claim.offered_to,
        weight=claim.weight,
        ttl_s=claim.ttl_s,
        age_s=blob.age_s if blob is not None else 0.0,
    )


def _sorted_out(
    prefix: str, group: Group, blobs: Iterable[Blob]
) -> tuple[_Blobs, _Blobs, list[Member]]:
    plain, cased, members = _Blobs(), _Blobs(), []
    for blob in blobs:
        place = place_of(prefix, blob.name)
        if place is None:
            continue
        if place.kind == MEMBER:
            members += [member] if (member := read_member(blob)) is not None else []
            continue
        here = plain if place.group == fold(group) else cased
        kind = here.claims if place.kind == OWNERSHIP else here.points
        kind[place.last.lower()] = blob
    return plain, cased, members


def _with_other(
    lease: Lease, other: _Blobs, key: str, progress: StoredProgress, foreign_ttl_s: float
) -> Lease:
    """With what the other spelling's blobs say: the group is as far as either of them, and whoever
    is alive there is not robbed."""
    point, owning = other.points.get(key), other.claims.get(key)
    ahead = further(progress, read_progress(point) if point is not None else None)
    lease = replace(
        lease,
        checkpoint=ahead.checkpoint,
        advanced=ahead.advanced,
        attempts=ahead.attempts,
    )
    if owning is None or lease.live:
        return lease
    claim = read_claim(owning, foreign_ttl_s)
    theirs = replace(
        lease, owner=claim.owner, ttl_s=claim.ttl_s, age_s=owning.age_s, offered_to=None
    )
    return theirs if theirs.live else lease
