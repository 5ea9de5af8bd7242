"""Blob storage, as far as an archive needs it: named objects in a local folder, or in Azure."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import unquote

from homes.local.whole_file import whole_file
from leasehold import BadInput, StoreUnavailable


class Blobs(Protocol):
    """Names have slashes between their parts. Every verb may raise ``StoreUnavailable``."""

    def put(self, name: str, data: bytes) -> None:
        """Whole or not at all, in the place of what was there."""

    def get(self, name: str) -> bytes: ...

    def names(self) -> Iterator[str]:
        """Of all objects, in order."""


def open_blobs(url: str) -> Blobs:
    """``data/archive``, ``file:///data/archive`` or ``azure-blob://ACCOUNT/CONTAINER?prefix=…``."""
    scheme, found, rest = url.partition("://")
    if not found:
        return Folder(Path(url))
    if scheme.lower() == "file":
        return Folder(Path(unquote(rest)))
    if scheme.lower() != "azure-blob":
        raise BadInput(
            f"no blob storage is known by {scheme}://; give a folder, or "
            "azure-blob://ACCOUNT/CONTAINER?prefix=PATH"
        )
    # Imported on demand: it brings packages that need not be installed.
    return cast(Blobs, import_module("homes.pipelines.azure_blobs").AzureBlobs.from_url(url))


class Folder:
    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise BadInput(f"{path} is no folder")
        self.path = path

    def put(self, name: str, data: bytes) -> None:
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as file:
                file.write(data)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be written: {error}") from error

    def get(self, name: str) -> bytes:
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            raise StoreUnavailable(f"{self.path / name} cannot be read: {error}") from error

    def names(self) -> Iterator[str]:
        for path in sorted(self.path.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                yield path.relative_to(self.path).as_posix()

    def __repr__(self) -> str:
        return f"Folder({self.path})"
