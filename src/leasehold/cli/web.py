"""``leasehold web``: the web page of the homes, over what the other processes keep in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from leasehold.cli.options import AsJson, console, notes
from leasehold.cli.stopping import stopping
from leasehold.errors import BadInput
from leasehold.homes.places import Places


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
    code_of: Annotated[
        str | None, Option(metavar="HOME", help="Print the access code of a home, and end.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the pages My home and Operations until Ctrl-C.

    The secret and the operators' password come from LEASEHOLD_SECRET and
    LEASEHOLD_OPERATOR_PASSWORD, else from a file in DATA_DIR that is made on first run.
    """
    # The extra may not be installed.
    from leasehold.homes.readings import HOME_ID  # noqa: PLC0415
    from leasehold.homes.web import Secrets, open_web  # noqa: PLC0415
    from leasehold.homes.web.sessions import Sessions  # noqa: PLC0415

    places = Places(folder)
    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; leasehold demo makes one")
    secrets = Secrets.load(places.secrets)
    if code_of is not None:
        if not HOME_ID.fullmatch(code_of):
            raise BadInput(f"{code_of!r} is no home's id; they look like H000123")
        code = Sessions(secrets).access_code(code_of)
        echo(json.dumps({"home": code_of, "code": code}) if as_json else code)
        return
    names = public_host or []
    with open_web(places, secrets, host=host, port=port, names=names, secure=behind_tls) as server:
        if as_json:
            echo(json.dumps({"url": server.url}))
        else:
            console.print(f"[bold]{server.url}[/]", highlight=False)
            notes.print(f"operators' password: in your environment, or in {places.secrets}")
        with stopping() as stop:
            stop.wait()
