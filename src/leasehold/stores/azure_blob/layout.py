"""How a group is written as blobs: the official Event Hubs SDKs' layout, and our keys beside it.

Pure: names and metadata in, values out. A partition has a *claim* (the ownership blob) and its
*progress* (the checkpoint blob). Stock processors rewrite either without our keys (``leasehold``,
``lh…``), so every read has an answer for their absence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote

from leasehold.core import progress as core_progress
from leasehold.core import strict_json
from leasehold.core.model import Checkpoint, Group, Lease, Member
from leasehold.errors import BadInput, NewerVersion
from leasehold.local.blob import Blob
from leasehold.settings import TIMING
from leasehold.stores.azure_blob.names import checkpoint_name, ownership_name

FORMAT = 1
METADATA_BYTES_MAX = 8192
STOCK_TTL_S = 180.0
"""When the stock Python processor gives up an owner: 6 load balancing intervals of 30 s."""

EARLIEST_OFFSET = "-1"
POSITION = ("offset", "sequencenumber")
_NO_OFFSET = frozenset({"", "no offset", "none"})
_PLAIN = re.compile(r"[!-~]+(?: [!-~]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An ownership blob: who reads the partition."""

    owner: str | None = None
    epoch: int = 0
    ttl_s: float = TIMING.lease_ttl_s
    weight: float = 0.0
    offered_to: str | None = None
    ours: bool = True
    """False: the last writer was a stock processor."""
    kept: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Metadata that is not ours to change."""

    def held_by(self, lease: Lease) -> bool:
        mine = (self.owner, self.epoch) == (lease.owner, lease.epoch)
        return self.ours and mine and lease.owner is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredProgress:
    """A checkpoint blob: where the group continues, and who alone may write that."""

    checkpoint: Checkpoint
    holder: str | None = None
    epoch: int = 0
    advanced: bool = False
    attempts: int = 0
    children: Mapping[str, Checkpoint] | None = None
    """Not None: split into these; the blob stays as a tombstone."""
    closed: bool = False
    """The split is finished: the children's blobs exist."""
    ours: bool = True
    kept: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Metadata that is not ours to change; the position, too, as long as it stays where it is: what
    others left blank means something else to them than any number."""

    def sent_to(self, position: Checkpoint) -> StoredProgress:
        """At a position that somebody chose, which is never blank."""
        kept = {key: value for key, value in self.kept.items() if key not in POSITION}
        return replace(self, checkpoint=position, attempts=0, kept=kept)

    def is_ahead_of(self, position: Checkpoint) -> bool:
        return self.children is None and self.checkpoint.next_sequence > position.next_sequence

    def held_by(self, lease: Lease) -> bool:
        mine = (self.holder, self.epoch) == (lease.owner, lease.epoch)
        return self.ours and mine and lease.owner is not None

    @property
    def untouched(self) -> bool:
        """Nobody ever held it."""
        return self.ours and self.epoch == 0 and self.children is None

    def open_to(self, lease: Lease) -> bool:
        """Whether the holder of the claim may write: a stock processor's write leaves no holder."""
        return self.held_by(lease) or not self.ours


def next_epoch(claim: Claim | None, progress: StoredProgress, date_s: float) -> int:
    """Above every epoch so far. Where a stock processor wiped it, the store's time stands in."""
    known = max(progress.epoch, claim.epoch if claim is not None else 0)
    wiped = not progress.ours if claim is None else not claim.ours
    return max(known + 1, int(date_s)) if wiped else known + 1


def advance(progress: StoredProgress, lease: Lease) -> StoredProgress:
    """The progress after the holder's write: moved on, or tries counted; never back."""
    marked = replace(progress, holder=lease.owner, epoch=lease.epoch, ours=True)
    here, there = progress.checkpoint.next_sequence, lease.checkpoint.next_sequence
    if there < here:
        return marked
    return replace(
        marked,
        checkpoint=core_progress.further(progress.checkpoint, lease.checkpoint),
        attempts=lease.attempts,
        advanced=progress.advanced or there > here,
    )


def real_names(prefix: str, blob: Blob) -> tuple[Group, str] | None:
    """Group and partition in their own case, where the blob still says it."""
    said = [unquote(part) for part in blob.metadata.get("lhname", "").split("/")]
    if len(said) != 4:
        return None
    group, partition = Group(namespace=said[0], feed=said[1], name=said[2]), said[3]
    homes = (
        name(prefix, group, partition, cased=cased)
        for name in (checkpoint_name, ownership_name)
        for cased in (False, True)
    )
    return (group, partition) if blob.name in homes else None


def further(progress: StoredProgress, other: StoredProgress | None) -> StoredProgress:
    """At the other's position, if that is ahead. The same group was there, under another name."""
    if other is None or progress.children is not None:
        return progress
    if not other.is_ahead_of(progress.checkpoint):
        return progress
    return replace(
        progress, checkpoint=other.checkpoint, attempts=other.attempts, advanced=other.advanced
    )


def write_claim(group: Group, partition: str, claim: Claim) -> dict[str, str]:
    metadata = {**claim.kept, **_signed(group, partition, claim.epoch)}
    metadata["ownerid"] = claim.owner or ""
    if claim.owner is not None and not _PLAIN.fullmatch(claim.owner):
        metadata["ownerid"] = quote(claim.owner, safe="")
        metadata["lhowner"] = _encode(claim.owner)
    metadata["lhttl"] = repr(claim.ttl_s)
    metadata["lhweight"] = repr(claim.weight)
    if claim.offered_to is not None:
        metadata["lhofferedto"] = _encode(claim.offered_to)
    return _within_limit(metadata, partition)


def read_claim(blob: Blob, foreign_ttl_s: float = STOCK_TTL_S) -> Claim:
    said = blob.metadata
    owner = _decode(said.get("lhowner")) or said.get("ownerid") or None
    kept = {key: value for key, value in others_keys(blob).items() if key != "ownerid"}
    if not is_ours(blob):
        return Claim(owner=owner, ttl_s=foreign_ttl_s, ours=False, kept=kept)
    return Claim(
        owner=owner,
        epoch=_int(said.get("lhepoch"), 0),
        ttl_s=_float(said.get("lhttl"), TIMING.lease_ttl_s),
        weight=_float(said.get("lhweight"), 0.0),
        offered_to=_decode(said.get("lhofferedto")),
        kept=kept,
    )


def write_progress(group: Group, partition: str, progress: StoredProgress) -> dict[str, str]:
    token = progress.checkpoint.token
    metadata = {**progress.kept, **_signed(group, partition, progress.epoch)}
    if _position(metadata) != progress.checkpoint:
        # Stock readers start after ``offset`` and fail without one: where the token is not an
        # offset, they must begin at the beginning rather than lose events.
        metadata["offset"] = token if _PLAIN.fullmatch(token) else EARLIEST_OFFSET
        metadata["sequencenumber"] = str(progress.checkpoint.next_sequence - 1)
    if token != metadata.get("offset") or token.lower() in _NO_OFFSET:
        metadata["lhtoken"] = _encode(token)
    metadata["lhadvanced"] = "1" if progress.advanced else "0"
    metadata["lhattempts"] = str(progress.attempts)
    if progress.holder is not None:
        metadata["lhholder"] = _encode(progress.holder)
    if progress.children is not None:
        pairs = {p: [at.next_sequence, at.token] for p, at in progress.children.items()}
        metadata["lhchildren"] = _encode(json.dumps(pairs, separators=(",", ":")))
        metadata["lhclosed"] = "1" if progress.closed else "0"
    return _within_limit(metadata, partition)


def read_progress(blob: Blob) -> StoredProgress | None:
    """None: an entry without a position, such as a directory; no lease stands there."""
    if is_folder(blob):
        return None
    said, ours = blob.metadata, is_ours(blob)
    position, token = _position(said), _decode(said.get("lhtoken"))
    if position is None:
        return None
    children = _decode(said.get("lhchildren"))
    return StoredProgress(
        checkpoint=position if token is None else replace(position, token=token),
        holder=_decode(said.get("lhholder")),
        epoch=_int(said.get("lhepoch"), 0),
        advanced=said.get("lhadvanced") != "0",
        attempts=_int(said.get("lhattempts"), 0),
        children=None if children is None else _read_children(children),
        closed=said.get("lhclosed") == "1",
        ours=ours,
        kept=others_keys(blob),
    )


def write_member(member: Member) -> dict[str, str]:
    metadata = {
        "leasehold": str(FORMAT),
        "lhinstance": _encode(member.instance),
        "lhincarnation": _encode(member.incarnation),
        "lhttl": repr(member.ttl_s),
        "lhleaving": "1" if member.leaving else "0",
    }
    return _within_limit(metadata, member.instance)


def read_member(blob: Blob) -> Member | None:
    said = blob.metadata
    instance = _decode(said.get("lhinstance"))
    if not is_ours(blob) or instance is None:
        return None
    return Member(
        instance=instance,
        incarnation=_decode(said.get("lhincarnation")) or "",
        ttl_s=_float(said.get("lhttl"), TIMING.lease_ttl_s),
        leaving=said.get("lhleaving") == "1",
        age_s=blob.age_s,
        version=blob.etag,
    )


def is_ours(blob: Blob) -> bool:
    said = blob.metadata.get("leasehold")
    if said is None:
        return False
    if _int(said, FORMAT + 1) > FORMAT:
        raise NewerVersion(
            f"blob {blob.name} was written by a newer Leasehold (layout {said}, known here: "
            f"{FORMAT}): upgrade this one"
        )
    return True


def is_folder(blob: Blob) -> bool:
    return blob.metadata.get("hdi_isfolder", "").lower() == "true"


def has_position(blob: Blob) -> bool:
    return not is_folder(blob) and _position(blob.metadata) is not None


def others_keys(blob: Blob) -> dict[str, str]:
    """What stock processors and other tools wrote there."""
    return {
        key: value
        for key, value in blob.metadata.items()
        if key != "leasehold" and not key.startswith("lh")
    }


def _position(said: Mapping[str, str]) -> Checkpoint | None:
    """As stock processors say it. A blank or impossible number stands for "unknown": 0 lets any
    later position through."""
    if said.keys().isdisjoint(POSITION):
        return None
    offset = said.get("offset", "")
    return Checkpoint(
        next_sequence=max(_int(said.get("sequencenumber"), -1) + 1, 0),
        token="" if offset.lower() in _NO_OFFSET else offset,
    )


def _signed(group: Group, partition: str, epoch: int) -> dict[str, str]:
    names = (group.namespace, group.feed, group.name, partition)
    return {
        "leasehold": str(FORMAT),
        "lhname": "/".join(quote(name, safe="$") for name in names),
        "lhepoch": str(epoch),
    }


def _read_children(text: str) -> dict[str, Checkpoint]:
    return {
        partition: Checkpoint(next_sequence=next_sequence, token=token)
        for partition, (next_sequence, token) in strict_json.loads(text).items()
    }


def _within_limit(metadata: dict[str, str], what: str) -> dict[str, str]:
    size = sum(len(key) + len(value) for key, value in metadata.items())
    if size > METADATA_BYTES_MAX:
        raise BadInput(
            f"{what!r} needs {size} bytes of blob metadata, and Azure keeps {METADATA_BYTES_MAX}: "
            "shorten the names or the feed's position token, or use another lease store"
        )
    return metadata


def _encode(text: str) -> str:
    """ASCII, and never empty: some readers make nothing of an empty value."""
    return "=" + quote(text, safe="")


def _decode(text: str | None) -> str | None:
    return unquote(text[1:]) if text is not None and text.startswith("=") else None


def _int(text: str | None, default: int) -> int:
    try:
        return int(text or "")
    except ValueError:
        return default


def _float(text: str | None, default: float) -> float:
    try:
        return float(text or "")
    except ValueError:
        return default
