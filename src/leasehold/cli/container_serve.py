"""``leasehold container serve``: the endpoint that clients of Cosmos DB connect to."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, echo

from leasehold.errors import BadInput
from leasehold.processor.signals import stop_on_signals
from leasehold.settings import ENDPOINT_PORT

if TYPE_CHECKING:
    from leasehold.endpoints.cosmos import CosmosEndpoint

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(
    containers: Annotated[
        list[Path] | None,
        Argument(metavar="[CONTAINER]...", help="Files of containers, such as data/alerts.db"),
    ] = None,
    *,
    folder: Annotated[
        Path | None, Option(help="Where clients may create databases and containers.")
    ] = None,
    host: Annotated[str, Option(help="The address to listen on.")] = LOOPBACK[0],
    port: Annotated[
        int, Option(help="The port to listen on; 0: any that is free.")
    ] = ENDPOINT_PORT,
    key_file: Annotated[
        Path | None,
        Option(help="Holds the master key; made if missing (default: beside what is served)."),
    ] = None,
    tls_cert: Annotated[
        Path | None, Option(help="A certificate in PEM format: serve over TLS.")
    ] = None,
    tls_key: Annotated[Path | None, Option(help="The certificate's private key.")] = None,
    request_units: Annotated[
        float | None,
        Option(help="Answer 429 beyond so many request units per second (default: no limit)."),
    ] = None,
) -> None:
    """Serve containers to clients of Azure Cosmos DB, for development and tests.

    Each container is in the database that its namespace names. Stop with Ctrl-C.
    """
    files = containers or []
    for file in files:
        if not file.exists():
            raise BadInput(
                f"there is no container at {file}; make one with: leasehold container create "
                f"{file} --partition-key /FIELD"
            )
    if not files and folder is None:
        raise BadInput("give the file of a container, or --folder for clients to create them in")
    if request_units is not None and not request_units > 0:
        raise BadInput(f"--request-units {request_units}: give a number above 0")
    # Needs an extra that the other commands do without.
    from leasehold.endpoints.cosmos import CosmosEndpoint, keep_key  # noqa: PLC0415

    where = key_file or _beside(files, folder)
    endpoint = CosmosEndpoint(
        files,
        folder=folder,
        key=keep_key(where),
        host=host,
        port=port,
        tls=_tls(tls_cert, tls_key),
        request_units_s=request_units,
    )
    asyncio.run(_serve(endpoint, where, host))


async def _serve(endpoint: CosmosEndpoint, key_file: Path, host: str) -> None:
    stopped = asyncio.Event()
    async with endpoint:
        names = [f"{database.id}/{each.id}" for database, each in endpoint.account.collections()]
        echo(f"serving {', '.join(names) or 'no containers yet'} at {endpoint.url}")
        echo(f"the master key is in {key_file}")
        if host not in LOOPBACK:
            echo("others can reach this address: whoever has the key can read and write everything")
        with stop_on_signals(stopped.set, stopped.set):
            await stopped.wait()
    echo("stopped")


def _beside(files: list[Path], folder: Path | None) -> Path:
    return folder / "master.key" if folder is not None else files[0].with_suffix(".key")


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None:
            raise BadInput("--tls-key needs --tls-cert besides")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"the certificate {certificate} cannot be used: {error}") from error
    return context
