"""Requests to one blob container: counted, bounded, with Azure's errors in our words."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

from leasehold.errors import BadInput, LeaseholdError, MissingExtra, StoreUnavailable
from leasehold.local.azure import SECRETS
from leasehold.local.blob import Blob

try:
    from azure.core import MatchConditions
    from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
    from azure.storage.blob.aio import ContainerClient
except ImportError as error:
    raise MissingExtra(
        "Azure Blob Storage needs an extra: pip install 'leasehold[azure]'"
    ) from error

T = TypeVar("T")

PAGE_BLOBS = 5000
_MISSING, _CHANGED, _EXISTS = 404, 412, 409
_LOCKED = frozenset({"LeaseIdMissing", "LeaseIdMismatchWithBlobOperation", "LeaseLost"})
"""Also 412, and no lost race: somebody holds Azure's own lease on the blob."""


class BlobContainer:
    """Each event loop that uses it has connections of its own, made on first use; so it may be used
    again after ``close``, in the same loop or in another one."""

    def __init__(
        self, connect: Callable[[], ContainerClient], *, timeout_s: float, concurrency: int
    ) -> None:
        self.requests: Counter[str] = Counter()
        self.seen: dict[str, Blob] = {}
        """Each blob as last answered. It may have changed since; its ETag tells."""
        self._connect, self._timeout_s, self._concurrency = connect, timeout_s, concurrency
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}

    async def look(self, verb: str, name: str) -> Blob | None:
        blob = self._session.client.get_blob_client(name)
        try:
            found, date_s = await self._send(verb, blob.get_blob_properties, name)
        except _Refused as refusal:
            refusal.expect(_MISSING)
            self.seen.pop(name, None)
            return None
        return self._keep(_blob(name, found.metadata, found, date_s))

    async def read(self, verb: str, name: str) -> tuple[Blob, bytes] | None:
        """A blob and its content, as of one moment."""
        blob = self._session.client.get_blob_client(name)

        async def whole(**options: Any) -> tuple[Any, bytes]:
            download = await blob.download_blob(**options)
            return download.properties, await download.readall()

        try:
            (found, content), date_s = await self._send(verb, whole, name)
        except _Refused as refusal:
            refusal.expect(_MISSING)
            return None
        return _blob(name, found.metadata, found, date_s), content

    async def rewrite(
        self, verb: str, name: str, content: bytes, metadata: dict[str, str], etag: str
    ) -> Blob | None:
        """Replace content and metadata if it is still the blob of that ETag. None: it is not."""
        blob = self._session.client.get_blob_client(name)
        put = partial(
            blob.upload_blob, content, overwrite=True, metadata=metadata, **_if_match(etag)
        )
        try:
            answer, date_s = await self._send(verb, put, name)
        except _Refused as refusal:
            refusal.expect(_MISSING, _CHANGED)
            return None
        return self._keep(_blob(name, metadata, answer, date_s))

    async def make(
        self,
        verb: str,
        name: str,
        metadata: dict[str, str],
        *,
        content: bytes = b"",
        over: bool = False,
    ) -> Blob | None:
        """Put a blob where none is (or ``over`` what is). None: there is one."""
        while True:
            blob = self._session.client.get_blob_client(name)
            put = partial(blob.upload_blob, content, overwrite=over, metadata=metadata)
            try:
                answer, date_s = await self._send(verb, put, name)
            except _Refused as refusal:
                if refusal.code == "ContainerNotFound":
                    await self._make_container(verb)
                    continue
                refusal.expect(_EXISTS, _CHANGED)
                return None
            return self._keep(_blob(name, metadata, answer, date_s))

    async def change(
        self, verb: str, name: str, metadata: dict[str, str], etag: str
    ) -> Blob | None:
        """Rewrite a blob's metadata if it is still the one of that ETag. None: it is not."""
        known = self.seen.get(name)
        if known is not None and known.etag == etag:
            metadata = {known.keys.get(key, key): value for key, value in metadata.items()}
        blob = self._session.client.get_blob_client(name)
        try:
            answer, date_s = await self._send(
                verb, partial(blob.set_blob_metadata, metadata, **_if_match(etag)), name
            )
        except _Refused as refusal:
            refusal.expect(_MISSING, _CHANGED)
            return None
        return self._keep(_blob(name, metadata, answer, date_s))

    async def remove(self, verb: str, name: str, etag: str | None = None) -> bool:
        """True: the blob is gone. With an ETag, only the blob of that one goes."""
        blob = self._session.client.get_blob_client(name)
        condition = _if_match(etag) if etag is not None else {}
        try:
            await self._send(verb, partial(blob.delete_blob, **condition), name)
        except _Refused as refusal:
            refusal.expect(_MISSING, _CHANGED)
            if refusal.status == _CHANGED:
                return False
        self.seen.pop(name, None)
        return True

    async def list_under(self, verb: str, prefix: str) -> tuple[list[Blob], float]:
        """All blobs under a prefix, and the store's time: one request per 5,000."""
        blobs: list[Blob] = []
        token: str | None = None

        async def page(**options: Any) -> tuple[list[Any], str | None]:
            pages: Any = self._session.client.list_blobs(
                prefix, include=["metadata"], results_per_page=PAGE_BLOBS, **options
            ).by_page(token)
            items = [item async for item in await anext(pages)]
            return items, pages.continuation_token

        while True:
            try:
                (items, token), date_s = await self._send(verb, page)
            except _Refused as refusal:
                if refusal.code != "ContainerNotFound":
                    refusal.expect()
                return [], refusal.date_s
            blobs += [_blob(item.name, item.metadata, item, date_s) for item in items]
            if not token:
                return blobs, date_s

    async def close(self) -> None:
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.client.close()

    def remember(self, blobs: Iterable[Blob]) -> None:
        """Keep what a listing said, unless an answer since then said something newer."""
        for blob in blobs:
            known = self.seen.get(blob.name)
            if known is None or blob.modified_s > known.modified_s:
                self.seen[blob.name] = blob

    async def _make_container(self, verb: str) -> None:
        try:
            await self._send(verb, self._session.client.create_container)
        except _Refused as refusal:
            if refusal.code != "ContainerAlreadyExists":
                refusal.expect()

    @property
    def _session(self) -> _Session:
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            for other in [other for other in list(self._sessions) if other.is_closed()]:
                self._sessions.pop(other, None)  # other threads may do so, too
            client, slots = self._connect(), asyncio.Semaphore(self._concurrency)
            self._sessions[loop] = _Session(client, slots)
        return self._sessions[loop]

    def _keep(self, blob: Blob) -> Blob:
        self.seen[blob.name] = blob
        return blob

    async def _send(
        self, verb: str, request: Callable[..., Awaitable[T]], blob: str = ""
    ) -> tuple[T, float]:
        """The answer and its ``Date``: the only clock by which anything here grows old."""
        dates = [0.0]

        def note(answer: Any) -> None:
            said = answer.http_response.headers.get("Date")
            dates.append(parsedate_to_datetime(said).timestamp() if said else 0.0)

        session = self._session
        client = session.client
        where = f"storage account {client.account_name}, container {client.container_name}"
        async with session.slots:
            self.requests[verb] += 1
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await request(raw_response_hook=note), dates[-1]
            except TimeoutError as error:
                raise StoreUnavailable(
                    f"{where}: no answer to {verb} within {self._timeout_s:g} s; try "
                    "again later, or with a larger timeout_s"
                ) from error
            except HttpResponseError as error:
                raise _Refused(where, verb, blob, error, dates[-1]) from error
            except AzureError as error:
                raise StoreUnavailable(
                    f"{where} cannot be reached for {verb} ({type(error).__name__}): check "
                    "the account name, the endpoint and the network"
                ) from error
            except Exception as error:  # the client fails in any way once it was closed
                if session is self._sessions.get(asyncio.get_running_loop()):
                    raise
                raise StoreUnavailable(
                    f"{where} was closed while {verb} waited for an answer"
                ) from error


@dataclass(frozen=True, slots=True)
class _Session:
    client: ContainerClient
    slots: asyncio.Semaphore


class _Refused(Exception):
    """An answer that is no success. The caller knows which ones it expects."""

    def __init__(
        self, where: str, verb: str, blob: str, error: HttpResponseError, date_s: float
    ) -> None:
        super().__init__(where, verb)
        # A key that cannot even sign a request has no status.
        unsigned = isinstance(error, ClientAuthenticationError)
        self.status = int(error.status_code or (401 if unsigned else 0))
        code = getattr(error, "error_code", None)
        self.code = str(getattr(code, "value", code) or "")
        self.date_s, self._blob = date_s, blob
        self._said = f"{where} answered {verb} with {self.status} {self.code}".rstrip()

    def expect(self, *statuses: int) -> None:
        """Raise for any other status, and where the account itself is what is missing."""
        if self.status in statuses and self.code not in (*_LOCKED, "ResourceNotFound"):
            return
        raise self._meaning() from self.__cause__

    def _meaning(self) -> LeaseholdError:
        if self.code in _LOCKED:
            return StoreUnavailable(
                f"{self._said}: some program holds one of Azure's own blob leases on {self._blob}, "
                f"so nobody else can write it. End that program, or break its lease: az storage "
                f"blob lease break --blob-name '{self._blob}'"
            )
        if self.status in (401, 403):
            return BadInput(
                f"{self._said}: check the secret in the environment ({SECRETS}), what it permits, "
                "and this machine's clock, which Azure lets differ by 15 minutes"
            )
        passing = self.status in (408, 429) or not 400 <= self.status < 500
        if passing or self.code == "ContainerBeingDeleted":
            return StoreUnavailable(f"{self._said}: it is busy or in trouble; try again later")
        return BadInput(
            f"{self._said}: check the account, the container, the names in use and api_version"
        )


def _blob(name: str, metadata: Mapping[str, str | None] | None, answer: Any, date_s: float) -> Blob:
    return Blob(
        name=name,
        etag=str(answer["etag"]).strip('"'),
        metadata={key.lower(): value or "" for key, value in (metadata or {}).items()},
        keys={key.lower(): key for key in metadata or {}},
        modified_s=answer["last_modified"].timestamp(),
        date_s=date_s,
    )


def _if_match(etag: str) -> dict[str, Any]:
    return {"etag": f'"{etag}"', "match_condition": MatchConditions.IfNotModified}
