"""Where a group's blobs are: the official Event Hubs SDKs' names, of which there are two spellings.

.NET, Python and JavaScript write namespace, hub and group in small letters; Java, Go and Rust keep
their case, and neither kind sees the other's blobs. We read both, and a partition's blobs stay in
the spelling they have. Where a partition has both, those that keep case count: only we see both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from leasehold.core.model import Group

OWNERSHIP, CHECKPOINT, MEMBER = "ownership", "checkpoint", "leasehold/member"

_PATH_BREAKERS = re.compile(r"[/\\%\x00-\x1f\x7f]|\.$")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobPlace:
    """What a blob's name says."""

    group: Group
    """As it is spelled there."""
    kind: str
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """Which blobs of a group keep the case of its names."""

    cased: frozenset[str] = frozenset()
    """Partitions, folded, that have a blob that does."""
    plain: frozenset[str] = frozenset()
    """Partitions, folded, that have a blob in small letters."""

    def keeps_case(self, partition: str) -> bool:
        """A partition without blobs goes where those that keep case will look for it, if any."""
        key = partition.lower()
        return key in self.cased or (bool(self.cased) and key not in self.plain)

    @property
    def doubled(self) -> frozenset[str]:
        return self.cased & self.plain


def root_name(prefix: str, group: Group, *, cased: bool = False) -> str:
    parts = (group.namespace, group.feed, group.name)
    return prefix + "".join(f"{_part(text, cased)}/" for text in parts)


def root_names(prefix: str, group: Group) -> tuple[str, ...]:
    """The one in small letters first; the other only where it differs."""
    return tuple(dict.fromkeys(root_name(prefix, group, cased=cased) for cased in (False, True)))


def ownership_name(prefix: str, group: Group, partition: str, *, cased: bool = False) -> str:
    return f"{root_name(prefix, group, cased=cased)}{OWNERSHIP}/{_part(partition, cased)}"


def checkpoint_name(prefix: str, group: Group, partition: str, *, cased: bool = False) -> str:
    return f"{root_name(prefix, group, cased=cased)}{CHECKPOINT}/{_part(partition, cased)}"


def member_name(prefix: str, group: Group, instance: str) -> str:
    """Own blobs, so in their own case; only a last dot needs more than the usual encoding."""
    return re.sub(r"\.$", "%2E", f"{root_name(prefix, group)}{MEMBER}/{quote(instance, safe='')}")


def place_of(prefix: str, name: str) -> BlobPlace | None:
    """None for blobs that are not of this layout."""
    parts = name.removeprefix(prefix).split("/")
    if not name.startswith(prefix) or len(parts) < 5 or not all(parts):
        return None
    namespace, feed, group, *kind, last = parts
    if "/".join(kind) not in (OWNERSHIP, CHECKPOINT, MEMBER):
        return None
    names = Group(namespace=unquote(namespace), feed=unquote(feed), name=unquote(group))
    return BlobPlace(group=names, kind="/".join(kind), last=unquote(last))


def spelling_of(prefix: str, group: Group, names: Iterable[str]) -> Spelling:
    """How the blobs of these names are spelled."""
    roots, found = root_names(prefix, group), {False: set[str](), True: set[str]()}
    for name in names:
        place = place_of(prefix, name)
        if place is not None and place.kind != MEMBER:
            found[not name.startswith(roots[0])].add(place.last.lower())
    return Spelling(cased=frozenset(found[True]), plain=frozenset(found[False]))


def fold(group: Group) -> Group:
    """The same for every spelling of a group."""
    return Group(
        namespace=group.namespace.lower(), feed=group.feed.lower(), name=group.name.lower()
    )


def _part(text: str, cased: bool) -> str:
    """Only what would break the path is encoded."""
    return _PATH_BREAKERS.sub(lambda hit: f"%{ord(hit[0]):02x}", text if cased else text.lower())
