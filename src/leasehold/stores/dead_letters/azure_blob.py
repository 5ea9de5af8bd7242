"""Dead letters in Azure Blob Storage, for instances on many machines.

A put creates a bundle under the next number, if nobody else did so meanwhile: that one request
stores its letters, all or none, and gives them their place. Whatever changes a bundle later is
conditional on its ETag. A purged bundle stays behind, empty, until nobody can still want its
number; the newest one stays for good, since the next number follows from it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from leasehold.clock import SystemClock
from leasehold.core.model import Group
from leasehold.local.azure import AzureSettings, open_client
from leasehold.local.blob import Blob
from leasehold.local.blob_container import BlobContainer
from leasehold.ports import Clock, DeadLetter, LetterFilter
from leasehold.settings import STORE_TIMEOUT_S
from leasehold.stores.dead_letters.bundle import (
    FOLDER,
    Bundle,
    Row,
    bundle_name,
    bundles_of,
    letter_in,
    read_bundle,
    read_content,
    write_content,
    write_metadata,
)
from leasehold.stores.dead_letters.rows import check_age, check_limit, row_of, store_time_us

if TYPE_CHECKING:
    from azure.storage.blob.aio import ContainerClient

AT_ONCE = 32
"""Bundles in hand at a time, content included."""
FORGET_AFTER_S = 3600.0
"""Of empty bundles. Azure refuses requests that were signed more than 15 minutes ago, so nobody who
listed the container before a bundle was emptied can still create one in its place."""


class AzureBlobDeadLetters:
    def __init__(
        self,
        connect: Callable[[], ContainerClient],
        *,
        prefix: str = "",
        timeout_s: float = STORE_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        """``connect`` makes a client for the container, once for each event loop that uses this."""
        self._blobs = BlobContainer(connect, timeout_s=timeout_s, concurrency=AT_ONCE)
        self.requests: Counter[str] = self._blobs.requests
        self._connect = connect
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    @classmethod
    def from_url(cls, url: str, **settings: Any) -> AzureBlobDeadLetters:
        """``azure-blob://ACCOUNT/CONTAINER?api_version=…&prefix=…&endpoint=…``

        The secret comes from the environment. The container is made when first written to.
        """
        said = AzureSettings.from_url(url)
        given: dict[str, Any] = {"prefix": said.prefix, "timeout_s": said.timeout_s} | settings
        open_client(said)  # so that a missing secret is noticed now, and not at the first request
        return cls(partial(open_client, said), **given)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process, such as a Spark executor, connects for itself, with its own secret."""
        opened = partial(type(self), self._connect, prefix=self._prefix, timeout_s=self._timeout_s)
        return opened, ()

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        rows: dict[str, Row] = {letter.id: row_of(letter) for letter in letters}
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:  # those of one process need not race for the next number
            await self._put(rows)

    async def list(
        self,
        which: LetterFilter,
        *,
        limit: int = 100,
        after: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[DeadLetter]:
        check_age(which)
        check_limit(limit)
        while True:
            seen = await self._look("list")
            found = sorted(seen.find(which), reverse=newest_first)
            if after is not None:
                found = [n for n in found if (n < after if newest_first else n > after)]
            wanted = frozenset(found[:limit])
            letters = await self._letters("list", seen, wanted, which)
            if letters or not wanted:  # or else all of them were purged meanwhile
                return tuple(letters[::-1] if newest_first else letters)

    async def get(self, id: str) -> DeadLetter | None:
        seen, which = await self._look("get"), LetterFilter(ids=[id])
        letters = await self._letters("get", seen, frozenset(seen.find(which)), which)
        return letters[0] if letters else None

    async def count(self, which: LetterFilter) -> Mapping[Group, int]:
        check_age(which)
        seen = await self._look("count")
        found = [
            slot for each in seen.bundles for _, slot in each.bundle.fitting(which, seen.now_us)
        ]
        return dict(Counter(slot.origin.group for slot in found))

    async def mark_redriven(self, ids: Sequence[str]) -> int:
        wanted, marked = frozenset(ids), 0
        while wanted:
            seen = await self._look("mark_redriven")
            wanted &= seen.ids
            done = await self._each(
                [each for each in seen.bundles if each.ids & wanted],
                partial(self._mark, wanted, seen.now_us),
            )
            marked += len(done)
            wanted -= done
        return marked

    async def purge(self, which: LetterFilter) -> int:
        check_age(which)
        purged = 0
        while True:
            seen = await self._look("purge")
            found = seen.find(which).values()
            if not found:
                await self._forget(seen)
                return purged
            whole = {each.blob.name: each for each in found}
            purged += len(await self._each(whole.values(), partial(self._purge, which, seen)))

    async def close(self) -> None:
        await self._blobs.close()

    async def _look(self, verb: str) -> _Listing:
        blobs, date_s = await self._blobs.list_under(verb, self._prefix + FOLDER)
        found = [_Found(blob, read_bundle(self._prefix, blob)) for blob in blobs]
        return _Listing(found, store_time_us(date_s, self._clock.wall()))

    async def _put(self, rows: dict[str, Row]) -> None:
        for tries in count():
            if not rows:
                return
            # Somebody else took the next number: do not all try again at once.
            await asyncio.sleep(random.uniform(0, min(0.05 * tries, 1.0)))
            seen = await self._look("put")
            known = frozenset(rows) & seen.ids
            new = [row for id, row in rows.items() if id not in known]
            stored = await self._append(new, seen) | await self._each(
                [each for each in seen.bundles if each.ids & known],
                partial(self._put_again, rows, seen.now_us),
            )
            rows = {id: row for id, row in rows.items() if id not in stored}

    async def _append(self, rows: Sequence[Row], seen: _Listing) -> frozenset[str]:
        """The ids of what was stored: less than all where somebody else took the next number."""
        stored: set[str] = set()
        for bundle, content in bundles_of(rows, seen.next_number, seen.now_us):
            name = bundle_name(self._prefix, bundle.first)
            if not await self._blobs.make("put", name, write_metadata(bundle), content=content):
                break
            stored.update(slot.id for _, slot in bundle.letters())
        return frozenset(stored)

    async def _put_again(
        self, rows: Mapping[str, Row], now_us: int, found: _Found
    ) -> frozenset[str]:
        read = await self._read("put", found)
        if read is None:
            return frozenset()
        blob, bundle, content = read
        ids = frozenset(rows) & content.keys()
        content |= {id: rows[id] for id in ids}
        metadata = write_metadata(bundle.put_again(ids, now_us))
        text = write_content(list(content.values()))
        done = await self._blobs.rewrite("put", blob.name, text, metadata, blob.etag)
        return ids if done else frozenset()

    async def _mark(self, wanted: frozenset[str], now_us: int, found: _Found) -> frozenset[str]:
        ids = found.ids & wanted
        metadata = write_metadata(found.bundle.redriven(ids, now_us))
        blob = found.blob
        done = await self._blobs.change("mark_redriven", blob.name, metadata, blob.etag)
        return ids if done else frozenset()

    async def _purge(self, which: LetterFilter, seen: _Listing, found: _Found) -> frozenset[str]:
        ids = frozenset(slot.id for _, slot in found.bundle.fitting(which, seen.now_us))
        left, blob, content = found.bundle.without(ids), found.blob, b""
        if not left.empty:
            read = await self._blobs.read("purge", blob.name)
            if read is None or read[0].etag != blob.etag:
                return frozenset()
            rows = read_content(read[1])
            content = write_content([rows[slot.id] for _, slot in left.letters()])
        metadata = write_metadata(left)
        done = await self._blobs.rewrite("purge", blob.name, content, metadata, blob.etag)
        return ids if done else frozenset()

    async def _forget(self, seen: _Listing) -> None:
        old = [
            each
            for each in seen.bundles
            if each.bundle.empty
            and each.blob.age_s > FORGET_AFTER_S
            and each.bundle.next_number < seen.next_number
        ]

        async def remove(found: _Found) -> frozenset[str]:
            await self._blobs.remove("purge", found.blob.name, found.blob.etag)
            return frozenset()

        await self._each(old, remove)

    async def _letters(
        self, verb: str, seen: _Listing, wanted: frozenset[int], which: LetterFilter
    ) -> Sequence[DeadLetter]:
        """In order of their number; what no longer fits is left out."""
        letters: dict[int, DeadLetter] = {}

        async def read(found: _Found) -> frozenset[str]:
            now = await self._read(verb, found)
            if now is not None:
                _, bundle, content = now
                for number, slot in bundle.fitting(which, seen.now_us):
                    if number in wanted:
                        letters[number] = letter_in(content[slot.id], number, slot)
            return frozenset()

        await self._each([each for each in seen.bundles if each.numbers & wanted], read)
        return [letters[number] for number in sorted(letters)]

    async def _read(self, verb: str, found: _Found) -> tuple[Blob, Bundle, dict[str, Row]] | None:
        read = await self._blobs.read(verb, found.blob.name)
        if read is None:
            return None
        blob, content = read
        return blob, read_bundle(self._prefix, blob), read_content(content)

    async def _each(
        self, found: Iterable[_Found], act: Callable[[_Found], Awaitable[frozenset[str]]]
    ) -> frozenset[str]:
        """The ids for which it was done."""
        every, done = list(found), set[str]()
        for start in range(0, len(every), AT_ONCE):
            some = every[start : start + AT_ONCE]
            # All come to an end before one's failure is told: a late one must not write behind
            # whatever the caller does next.
            for outcome in await asyncio.gather(*map(act, some), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                done |= outcome
        return frozenset(done)


@dataclass(frozen=True, slots=True)
class _Found:
    blob: Blob
    bundle: Bundle

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(slot.id for _, slot in self.bundle.letters())

    @property
    def numbers(self) -> frozenset[int]:
        return frozenset(number for number, _ in self.bundle.letters())


@dataclass(frozen=True, slots=True)
class _Listing:
    """All bundles as of one look."""

    bundles: list[_Found]
    now_us: int

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(id for each in self.bundles for id in each.ids)

    @property
    def next_number(self) -> int:
        return max((each.bundle.next_number for each in self.bundles), default=1)

    def find(self, which: LetterFilter) -> dict[int, _Found]:
        """By number, the bundle that has it."""
        return {
            number: each
            for each in self.bundles
            for number, _ in each.bundle.fitting(which, self.now_us)
        }
