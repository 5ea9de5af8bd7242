"""How a group is written as blobs: the official Event Hubs SDKs' layout, and our keys beside it.

Pure: names and metadata in, values out. A partition has a *claim* (the ownership blob) and its
*progress* (the checkpoint blob). Stock processors rewrite either without our keys (``leasehold``,
``lh…``), so every read has an answer for their absence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from leasehold.core.model import Checkpoint, Group, Lease, Member, Snapshot
from leasehold.errors import BadInput, NewerVersion

FORMAT = 1
METADATA_BYTES_MAX = 8192
STOCK_TTL_S = 180.0
"""When the stock Python processor gives up an owner: 6 load balancing intervals of 30 s."""
OWNERSHIP, CHECKPOINT, MEMBER = "ownership", "checkpoint", "leasehold/member"

EARLIEST_OFFSET = "-1"
_NO_OFFSET = frozenset({"", "no offset", "None"})
_TICK_S = 1e-7
_PLAIN = re.compile(r"[!-~]+(?: [!-~]+)*")
_PATH_BREAKERS = re.compile(r"[/\\%\x00-\x1f\x7f]|\.$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A blob's metadata as of one response: facts that hold for as long as its ETag does."""

    name: str
    etag: str
    metadata: Mapping[str, str]
    modified_s: float
    date_s: float
    """The store's clock when it answered."""
    watched_s: float = 0.0
    """For how long this process has known it unchanged."""

    @property
    def age_s(self) -> float:
        """What has certainly passed: both times are cut to whole seconds, so up to 1 s less."""
        return max(self.date_s - self.modified_s - 1.0 + _TICK_S, self.watched_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An ownership blob: who reads the partition."""

    owner: str | None = None
    epoch: int = 0
    ttl_s: float = 10.0
    weight: float = 1.0
    offered_to: str | None = None
    ours: bool = True
    """False: the last writer was a stock processor."""

    def held_by(self, lease: Lease) -> bool:
        mine = (self.owner, self.epoch) == (lease.owner, lease.epoch)
        return self.ours and mine and lease.owner is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
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


def next_epoch(claim: Claim | None, progress: Progress, date_s: float) -> int:
    """Above every epoch so far. Where a stock processor wiped it, the store's time stands in."""
    known = max(progress.epoch, claim.epoch if claim is not None else 0)
    wiped = not progress.ours if claim is None else not claim.ours
    return max(known + 1, int(date_s)) if wiped else known + 1


def advance(progress: Progress, lease: Lease) -> Progress:
    """The progress after the holder's write: moved on, or tries counted; never back."""
    marked = replace(progress, holder=lease.owner, epoch=lease.epoch, ours=True)
    here, there = progress.checkpoint.next_sequence, lease.checkpoint.next_sequence
    if there < here:
        return marked
    if there == here:
        return replace(marked, attempts=lease.attempts)
    return replace(marked, checkpoint=lease.checkpoint, attempts=lease.attempts, advanced=True)


def root_name(prefix: str, group: Group) -> str:
    parts = (group.namespace, group.feed, group.name)
    return prefix + "".join(f"{_part(text)}/" for text in parts)


def ownership_name(prefix: str, group: Group, partition: str) -> str:
    return f"{root_name(prefix, group)}{OWNERSHIP}/{_part(partition)}"


def checkpoint_name(prefix: str, group: Group, partition: str) -> str:
    return f"{root_name(prefix, group)}{CHECKPOINT}/{_part(partition)}"


def member_name(prefix: str, group: Group, instance: str) -> str:
    """Own blobs, so in their own case; only a last dot needs more than the usual encoding."""
    return re.sub(r"\.$", "%2E", f"{root_name(prefix, group)}{MEMBER}/{quote(instance, safe='')}")


def _part(text: str) -> str:
    """Lower-cased like the official SDKs do; only what would break the path is encoded."""
    return _PATH_BREAKERS.sub(lambda hit: f"%{ord(hit[0]):02x}", text.lower())


def _split_name(prefix: str, name: str) -> tuple[Group, str, str] | None:
    """Group, kind and last part of a blob's name; None for blobs that are not of this layout."""
    parts = name.removeprefix(prefix).split("/")
    if not name.startswith(prefix) or len(parts) < 5 or not all(parts):
        return None
    namespace, feed, group, *kind, last = parts
    if "/".join(kind) not in (OWNERSHIP, CHECKPOINT, MEMBER):
        return None
    names = Group(namespace=unquote(namespace), feed=unquote(feed), name=unquote(group))
    return names, "/".join(kind), unquote(last)


def real_names(prefix: str, blob: Blob) -> tuple[Group, str] | None:
    """Group and partition in their own case, where the blob still says it."""
    said = [unquote(part) for part in blob.metadata.get("lhname", "").split("/")]
    if len(said) != 4:
        return None
    group, partition = Group(namespace=said[0], feed=said[1], name=said[2]), said[3]
    home = checkpoint_name(prefix, group, partition), ownership_name(prefix, group, partition)
    return (group, partition) if blob.name in home else None


def write_claim(group: Group, partition: str, claim: Claim) -> dict[str, str]:
    metadata = _signed(group, partition, claim.epoch)
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
    if not is_ours(blob):
        return Claim(owner=owner, ttl_s=foreign_ttl_s, ours=False)
    return Claim(
        owner=owner,
        epoch=_int(said.get("lhepoch"), 0),
        ttl_s=_float(said.get("lhttl"), 10.0),
        weight=_float(said.get("lhweight"), 1.0),
        offered_to=_decode(said.get("lhofferedto")),
    )


def write_progress(group: Group, partition: str, progress: Progress) -> dict[str, str]:
    token = progress.checkpoint.token
    metadata = _signed(group, partition, progress.epoch)
    # Stock readers start after ``offset`` and fail without one: where the token is not an offset,
    # they must begin at the beginning rather than lose events.
    metadata["offset"] = token if _PLAIN.fullmatch(token) else EARLIEST_OFFSET
    metadata["sequencenumber"] = str(progress.checkpoint.next_sequence - 1)
    if token != metadata["offset"] or token in _NO_OFFSET:
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


def read_progress(blob: Blob) -> Progress | None:
    """None: an entry without a position, such as a directory; no lease stands there."""
    if not _has_position(blob):
        return None
    said, ours = blob.metadata, is_ours(blob)
    offset = said.get("offset", "")
    token = _decode(said.get("lhtoken"))
    if token is None:
        token = "" if offset in _NO_OFFSET else offset
    children = _decode(said.get("lhchildren"))
    return Progress(
        # A blank or impossible number stands for "unknown": 0 lets any later position through.
        checkpoint=Checkpoint(
            next_sequence=max(_int(said.get("sequencenumber"), -1) + 1, 0), token=token
        ),
        holder=_decode(said.get("lhholder")),
        epoch=_int(said.get("lhepoch"), 0),
        advanced=said.get("lhadvanced") != "0",
        attempts=_int(said.get("lhattempts"), 0),
        children=None if children is None else _read_children(children),
        closed=said.get("lhclosed") == "1",
        ours=ours,
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
        ttl_s=_float(said.get("lhttl"), 10.0),
        leaving=said.get("lhleaving") == "1",
        age_s=blob.age_s,
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


def lease_of(
    group: Group, partition: str, progress: Progress, claim: Claim, blob: Blob | None
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


def snapshot_of(
    group: Group, prefix: str, blobs: Iterable[Blob], date_s: float, foreign_ttl_s: float
) -> tuple[Snapshot, Mapping[str, Blob]]:
    """What a listing says, and the checkpoint blobs of splits begun and not finished."""
    kinds: dict[str, dict[str, Blob]] = {OWNERSHIP: {}, CHECKPOINT: {}, MEMBER: {}}
    for blob in blobs:
        if (place := _split_name(prefix, blob.name)) is not None and not is_folder(blob):
            kinds[place[1]][place[2]] = blob
    members = [m for m in map(read_member, kinds[MEMBER].values()) if m is not None]
    leases, replaced, unfinished = [], set(), {}
    for key, blob in kinds[CHECKPOINT].items():
        progress, owning = read_progress(blob), kinds[OWNERSHIP].get(key)
        if progress is None:
            continue
        names = real_names(prefix, blob) or (owning and real_names(prefix, owning))
        partition = names[1] if names else key
        if progress.children is not None:
            replaced.add(partition)
            if not progress.closed:
                unfinished[partition] = blob
            continue
        claim = None if owning is None else read_claim(owning, foreign_ttl_s)
        lease = lease_of(group, partition, progress, claim or Claim(), owning)
        leases.append(lease if owning is not None else replace(lease, age_s=blob.age_s))
    return (
        Snapshot(
            leases=tuple(sorted(leases, key=lambda lease: lease.partition)),
            members=tuple(sorted(members, key=lambda member: member.instance)),
            taken_at=date_s,
            replaced=frozenset(replaced),
        ),
        unfinished,
    )


def groups_of(prefix: str, blobs: Iterable[Blob]) -> tuple[Group, ...]:
    """Every group with a lease, in its own case where any of its blobs still says it.

    One that a newer version writes to is named all the same, so that it hides no other.
    """
    found: dict[Group, Group] = {}
    alive: set[Group] = set()
    for blob in blobs:
        if (place := _split_name(prefix, blob.name)) is None:
            continue
        group, kind, _ = place
        if names := real_names(prefix, blob):
            found.setdefault(group, names[0])
        if kind == CHECKPOINT and _has_position(blob) and "lhchildren" not in blob.metadata:
            alive.add(group)
    return tuple(sorted(found.get(group, group) for group in alive))


def _has_position(blob: Blob) -> bool:
    return not is_folder(blob) and not blob.metadata.keys().isdisjoint(("offset", "sequencenumber"))


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
        for partition, (next_sequence, token) in json.loads(text).items()
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
