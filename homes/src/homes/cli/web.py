"""``homes web``: the web page of the homes, over what the other processes keep in a folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from homes.cli.stopping import stopping
from homes.cli.text import AsJson, console, notes
from homes.cli.url_options import (
    AlertsUrl,
    ConfigFile,
    DeadLettersUrl,
    FeedUrl,
    StoreUrl,
    TableUrl,
    urls_of,
)
from homes.local.app_log import start_log
from homes.local.places import Places
from homes.local.private_folder import keep_private, private_folder
from leasehold import BadInput


def web(
    folder: Annotated[
        Path, Argument(metavar="DATA_DIR", help="The application's folder, such as data")
    ],
    *,
    host: Annotated[str, Option(help="Where to listen; others can ask if you say 0.0.0.0.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Option(help="0 takes any that is free.", min=0, max=65535)] = 8080,
    public_host: Annotated[
        list[str] | None,
        Option(help="A name that the page is reached by; may be given several times."),
    ] = None,
    behind_tls: Annotated[
        bool,
        Option(
            "--behind-tls",
            help="A proxy speaks HTTPS for us, and says who asks in X-Forwarded-For.",
        ),
    ] = False,
    public_url: Annotated[
        str | None,
        Option(metavar="URL", help="The page's address in browsers, with https:// behind a proxy."),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        Option(
            metavar="ADDRESS|NETWORK",
            help="A proxy to trust, besides those on this machine; may be given several times.",
        ),
    ] = None,
    connections_max: Annotated[
        int | None,
        Option(help="Connections at a time; else what the limit on open files leaves, to 4096."),
    ] = None,
    connections_per_address: Annotated[
        int, Option(help="Connections of one address; a trusted proxy may have all.")
    ] = 128,
    head_timeout_s: Annotated[
        float, Option(help="How long a client may take to send the head of a request.")
    ] = 10.0,
    body_timeout_s: Annotated[float, Option(help="How long it may take for the body.")] = 20.0,
    idle_timeout_s: Annotated[
        float, Option(help="How long a connection is kept between requests.")
    ] = 30.0,
    write_timeout_s: Annotated[
        float, Option(help="How long a client may take for each 256 kB of its answer.")
    ] = 30.0,
    code_of: Annotated[
        str | None, Option(metavar="HOME", help="Print the access code of a home, and end.")
    ] = None,
    metrics_token: Annotated[
        bool, Option("--metrics-token", help="Print the bearer token for /metrics, and end.")
    ] = False,
    config: ConfigFile = None,
    feed: FeedUrl = None,
    store: StoreUrl = None,
    dead_letters: DeadLettersUrl = None,
    alerts: AlertsUrl = None,
    table: TableUrl = None,
    as_json: AsJson = False,
) -> None:
    """Serve the pages My home and Operations until Ctrl-C.

    The secret and the operators' password come from LEASEHOLD_SECRET and
    LEASEHOLD_OPERATOR_PASSWORD, else from a file in DATA_DIR that is made on first run.
    """
    # The web takes its time to load.
    from homes.domain.reading import HOME_ID, home_id  # noqa: PLC0415
    from homes.supervisor.data_folder import kept_homes  # noqa: PLC0415
    from homes.web.limits import ServerLimits, raise_descriptor_limit  # noqa: PLC0415
    from homes.web.secrets import Secrets  # noqa: PLC0415
    from homes.web.serve import open_web  # noqa: PLC0415
    from homes.web.sessions import Sessions  # noqa: PLC0415

    places = Places(
        folder,
        urls_of(
            config,
            feed=feed,
            store=store,
            dead_letters=dead_letters,
            alerts=alerts,
            table=table,
        ),
    )
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; homes demo makes one")
    keep_private()
    private_folder(folder, notes.print)
    secrets = Secrets.load(places.secrets)
    if code_of is not None:
        if not HOME_ID.fullmatch(code_of):
            raise BadInput(f"{code_of!r} is no home's id; they look like H000123")
        homes = kept_homes(places)
        if homes is not None and int(code_of[1:]) >= homes:
            raise BadInput(f"there is no home {code_of} here; the last one is {home_id(homes - 1)}")
        code = Sessions(secrets, codes=places.codes).access_code(code_of)
        echo(json.dumps({"home": code_of, "code": code}) if as_json else code)
        return
    if metrics_token:
        token = Sessions(secrets).metrics_token
        echo(json.dumps({"token": token}) if as_json else token)
        return
    raise_descriptor_limit()
    start_log(logging.StreamHandler(), logging.WARNING)
    most = {} if connections_max is None else {"connections_max": connections_max}
    limits = ServerLimits(
        head_timeout_s=head_timeout_s,
        body_timeout_s=body_timeout_s,
        idle_timeout_s=idle_timeout_s,
        write_timeout_s=write_timeout_s,
        connections_per_address=connections_per_address,
        **most,
    )
    with open_web(
        places,
        secrets,
        host=host,
        port=port,
        names=public_host or [],
        secure=behind_tls,
        public_url=public_url,
        trusted_proxies=trusted_proxy or [],
        limits=limits,
    ) as server:
        if as_json:
            echo(json.dumps({"url": server.url}))
        else:
            console.print(f"[bold]{server.url}[/]", highlight=False)
            notes.print(f"operators' password: in your environment, or in {places.secrets}")
        with stopping() as stop:
            stop.wait()
