"""What this process has seen of the groups in a container, and so where their blobs are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from leasehold.core.model import Group
from leasehold.local.blob_container import BlobContainer
from leasehold.stores.azure_blob import names
from leasehold.stores.azure_blob.layout import StoredProgress, read_progress
from leasehold.stores.azure_blob.listing import Listing, read_listing

log = logging.getLogger("leasehold")


class View:
    def __init__(self, blobs: BlobContainer, prefix: str, foreign_ttl_s: float) -> None:
        self._blobs, self._prefix, self._foreign_ttl_s = blobs, prefix, foreign_ttl_s
        self._spellings: dict[Group, names.Spelling] = {}

    async def look(self, verb: str, group: Group) -> Listing:
        roots = names.root_names(self._prefix, group)
        answers = await asyncio.gather(*(self._blobs.list_under(verb, root) for root in roots))
        blobs = [blob for found, _ in answers for blob in found]
        self._blobs.remember(blob for blob in blobs if names.MEMBER not in blob.name)
        date_s = min(date_s for _, date_s in answers)
        listing = read_listing(group, self._prefix, blobs, date_s, self._foreign_ttl_s)
        self._note(group, listing.spelling)
        return listing

    async def find(self, verb: str, group: Group) -> None:
        """Make sure that it is known how the group's blobs are spelled."""
        if group not in self._spellings and self.may_be_doubled(group):
            await self.look(verb, group)

    def may_be_doubled(self, group: Group) -> bool:
        return len(names.root_names(self._prefix, group)) > 1

    def ownership_name(self, group: Group, partition: str) -> str:
        return self._name(names.ownership_name, group, partition)

    def checkpoint_name(self, group: Group, partition: str) -> str:
        return self._name(names.checkpoint_name, group, partition)

    def is_doubled(self, group: Group, partition: str) -> bool:
        return partition.lower() in self._spellings.get(group, names.Spelling()).doubled

    def other_checkpoint_name(self, group: Group, partition: str) -> str:
        """In small letters: of a partition with both spellings, those blobs are not ours."""
        return names.checkpoint_name(self._prefix, group, partition)

    def other_ownership_name(self, group: Group, partition: str) -> str:
        return names.ownership_name(self._prefix, group, partition)

    async def other(self, verb: str, group: Group, partition: str) -> StoredProgress | None:
        """What the blob in small letters says now of a partition whose blobs keep their case. What
        was seen before may be of before a rewind."""
        if not self.is_doubled(group, partition):
            return None
        blob = await self._blobs.look(verb, self.other_checkpoint_name(group, partition))
        return read_progress(blob) if blob is not None else None

    def _name(self, name: Callable[..., str], group: Group, partition: str) -> str:
        cased = self._spellings.get(group, names.Spelling()).keeps_case(partition)
        return name(self._prefix, group, partition, cased=cased)

    def _note(self, group: Group, spelling: names.Spelling) -> None:
        before = self._spellings.get(group, names.Spelling())
        self._spellings[group] = spelling
        if new := sorted(spelling.doubled - before.doubled):
            plain, cased = names.root_names(self._prefix, group)
            log.warning(
                "partitions %s of %s have blobs in two spellings: processors that keep the case of "
                "names (Java, Go, Rust) see only those under %s, all others only those under %s, "
                "so each kind reads every event. Leasehold goes on with the former. Run one kind "
                "in a group, then delete the blobs of the other spelling",
                ", ".join(new),
                group,
                cased,
                plain,
            )
