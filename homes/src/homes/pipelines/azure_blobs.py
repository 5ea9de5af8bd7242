"""Objects in Azure Blob Storage. Imported only for an azure-blob URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, TypeVar

from leasehold import MissingExtra, StoreUnavailable, open_azure_container

try:
    from azure.core.exceptions import AzureError, HttpResponseError, ResourceExistsError
    from azure.storage.blob import ContainerClient
except ImportError as error:
    raise MissingExtra(
        "Azure Blob Storage needs an extra: pip install 'leasehold-homes[azure]'"
    ) from error

T = TypeVar("T")


class AzureBlobs:
    def __init__(self, client: ContainerClient, prefix: str, timeout_s: float) -> None:
        self._client, self._timeout_s = client, timeout_s
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The URL of a lease store, and the same secrets from the environment."""
        opened = open_azure_container(url)
        return cls(opened.client, opened.prefix, opened.timeout_s)

    def put(self, name: str, data: bytes) -> None:
        def upload() -> None:
            blob = self._client.get_blob_client(self._prefix + name)
            blob.upload_blob(data, overwrite=True, **self._limits)

        try:
            self._ask(name, upload)
        except StoreUnavailable as error:
            if getattr(error.__cause__, "error_code", None) != "ContainerNotFound":
                raise
            self._ask(name, self._make_container)
            self._ask(name, upload)

    def get(self, name: str) -> bytes:
        def download() -> bytes:
            blob = self._client.get_blob_client(self._prefix + name)
            data: bytes = blob.download_blob(**self._limits).readall()
            return data

        return self._ask(name, download)

    def names(self) -> Iterator[str]:
        listed = self._ask(
            "the list",
            lambda: [blob.name for blob in self._client.list_blobs(self._prefix, **self._limits)],
        )
        for name in listed:
            yield name.removeprefix(self._prefix)

    @property
    def _limits(self) -> dict[str, Any]:
        return {"connection_timeout": self._timeout_s, "read_timeout": self._timeout_s}

    def _make_container(self) -> None:
        try:
            self._client.create_container(**self._limits)
        except ResourceExistsError:
            return

    def _ask(self, what: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except AzureError as error:
            client = self._client
            where = f"storage account {client.account_name}, container {client.container_name}"
            status = error.status_code if isinstance(error, HttpResponseError) else None
            said = f"answered {status}" if status else "does not answer"
            raise StoreUnavailable(
                f"{where} {said} for {what} ({type(error).__name__}); check the network and the "
                "secret in the environment"
            ) from error
