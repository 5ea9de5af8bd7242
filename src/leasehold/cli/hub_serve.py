"""``leasehold hub serve``: the embedded hub for official Event Hubs clients."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path
from typing import Annotated

from typer import Option, echo

from leasehold.cli.options import AsJson, Fsync, HubPath, notes
from leasehold.endpoints.amqp import AmqpEndpoint
from leasehold.endpoints.amqp.endpoint import CONNECTIONS_MAX
from leasehold.endpoints.amqp.serve import serve as serve_hub
from leasehold.endpoints.amqp.tls import certificate, context_of
from leasehold.errors import BadInput
from leasehold.feeds.hub import Hub


def serve(
    hub: HubPath,
    *,
    port: Annotated[int, Option(help="The port to listen on; 0 takes a free one.")] = 5672,
    host: Annotated[str, Option(help="The address to listen on.")] = "127.0.0.1",
    tls: Annotated[
        bool, Option("--tls", help="Speak TLS, with a self-signed certificate beside the hub.")
    ] = False,
    connections: Annotated[
        int, Option(help="Accept at most this many connections.", min=1)
    ] = CONNECTIONS_MAX,
    fsync: Fsync = False,
    as_json: AsJson = False,
) -> None:
    """Let official Event Hubs clients use the hub over AMQP 1.0, for development and tests.

    This is not a production broker: one process, no replication. Stop it with Ctrl-C.
    """
    if not hub.exists():
        raise BadInput(f"there is no hub at {hub}; make one with: leasehold hub create {hub}")
    found = certificate(hub, host) if tls else None

    def started(endpoint: AmqpEndpoint, file: Path) -> None:
        where = {"hub": endpoint.hub.name, "host": host, "port": endpoint.port}
        if as_json:
            files = {"connection_file": str(file)}
            if found is not None:
                files["certificate_file"] = str(found.public)
            echo(json.dumps(where | files))
            return
        echo(f"serving the hub {endpoint.hub.name} on {host}:{endpoint.port} over AMQP 1.0")
        echo(f"connection string, with its key: {file}")
        if found is not None:
            echo(f"certificate that clients must trust: {found.public}")
        notes.print("For development and tests: this is no production broker.", highlight=False)
        if not is_loopback(host):
            notes.print(
                f"Others on the network can reach {host}; whoever has the key can read and send.",
                highlight=False,
            )

    with Hub.open(hub, fsync=fsync) as opened:
        serve_hub(
            opened,
            host=host,
            port=port,
            tls=None if found is None else context_of(found),
            connections_max=connections,
            started=started,
        )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
