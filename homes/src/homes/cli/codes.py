"""``homes codes``: the access codes that residents sign in with."""

from __future__ import annotations

import getpass
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from typer import Argument, Typer, echo

from homes.cli.text import AsJson, console, notes
from homes.local.places import Places
from homes.local.private_folder import keep_private, private_folder
from leasehold import BadInput

if TYPE_CHECKING:
    from homes.web.sessions import Sessions

app = Typer(help="Show, revoke and replace homes' access codes.", no_args_is_help=True)

Folder = Annotated[Path, Argument(metavar="DATA_DIR", help="The application's folder.")]
Home = Annotated[str, Argument(metavar="HOME", help="A home's id, such as H000123")]


@app.command("list")
def list_codes(folder: Folder, *, as_json: AsJson = False) -> None:
    """List homes whose code was revoked or replaced; all others have their first."""
    changed = _sessions(folder).codes.changed()
    found = [
        {
            "home": home,
            "state": "revoked" if state.revoked else "replaced",
            "at": datetime.fromtimestamp(state.changed_at, UTC).isoformat(),
        }
        for home, state in sorted(changed.items())
    ]
    if as_json:
        echo(json.dumps(found))
        return
    table = Table("home", "state", "since", box=None)
    for each in found:
        table.add_row(*each.values())
    console.print(table if found else "every home has its first code")


@app.command()
def show(folder: Folder, home: Home, *, as_json: AsJson = False) -> None:
    """Print a home's code."""
    sessions = _sessions(folder)
    _require_home(home)
    _print(sessions, home, as_json)


@app.command()
def revoke(folder: Folder, home: Home) -> None:
    """End a home's code and the sessions begun with it; it has none until it gets a new one."""
    sessions = _sessions(folder)
    _require_home(home)
    sessions.codes.revoke(home)
    _note(folder, "revoke code", home)
    echo(f"the code of {home} is revoked, and so are the sessions that it began")


@app.command()
def new(folder: Folder, home: Home, *, as_json: AsJson = False) -> None:
    """Give a home a new code; the old one and the sessions begun with it end."""
    sessions = _sessions(folder)
    _require_home(home)
    sessions.codes.replace(home)
    _note(folder, "replace code", home)
    _print(sessions, home, as_json)


def _sessions(folder: Path) -> Sessions:
    from homes.web.secrets import Secrets  # noqa: PLC0415  # the web takes its time to load
    from homes.web.sessions import Sessions  # noqa: PLC0415

    if not folder.is_dir():
        raise BadInput(f"there is no folder {folder}; homes demo makes one")
    keep_private()
    private_folder(folder, notes.print)
    places = Places(folder)
    return Sessions(Secrets.load(places.secrets), codes=places.codes)


def _require_home(home: str) -> None:
    from homes.domain.reading import HOME_ID  # noqa: PLC0415

    if not HOME_ID.fullmatch(home):
        raise BadInput(f"{home!r} is no home's id; they look like H000123")


def _print(sessions: Sessions, home: str, as_json: bool) -> None:
    code = sessions.access_code(home)
    echo(json.dumps({"home": home, "code": code}) if as_json else code)


def _note(folder: Path, action: str, home: str) -> None:
    from homes.web.audit import Audit  # noqa: PLC0415

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as containers have them
        user = f"user {os.getuid()}"
    who = f"{user} (command line)"
    Audit(Places(folder).audit).write(
        action, who=who, address="this machine", result="done", target=home
    )
