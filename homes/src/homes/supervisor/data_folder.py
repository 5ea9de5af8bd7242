"""The folder that holds all of the application's data, prepared for its first start."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from homes.local.places import Places
from homes.local.private_folder import private_folder
from homes.local.whole_file import whole_file
from leasehold import BadInput, Container, Hub, strict_json

log = logging.getLogger("leasehold")
PARTITIONS = 16
RETENTION_BYTES = 4 << 30
"""Not by time: what nobody has read yet must not go because the application stood still."""


def count_of_homes(places: Places, wanted: int | None, default: int) -> int:
    """As many as the folder was begun with: sensors of other homes would be strangers there."""
    kept = kept_homes(places)
    if kept is not None and wanted not in (None, kept):
        raise BadInput(
            f"{places.folder} was begun with {kept:,} homes: leave out --homes, or use another "
            "--folder"
        )
    homes = kept or wanted or default
    if kept is None:
        with whole_file(places.town) as file:
            file.write(json.dumps({"homes": homes}).encode())
    return homes


def kept_homes(places: Places) -> int | None:
    """How many the folder was begun with; None: nobody said."""
    try:
        return int(strict_json.loads(places.town.read_bytes())["homes"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{places.town} is damaged ({error}); remove it") from error


def prepare(places: Places) -> None:
    """Hub and container, if this is the first time. What is beyond the folder is there already."""
    private_folder(places.folder, log.warning)
    if not places.urls.feed and not places.hub.exists():
        Hub.create(
            places.hub,
            name="sensors",
            namespace="homes.local",
            partitions=PARTITIONS,
            retention_bytes=RETENTION_BYTES,
        ).close()
    if not places.urls.alerts and not places.alerts_file.exists():
        Container.create(
            places.alerts_file, name="alerts", namespace="homes.local", partition_key="/home_id"
        ).close()
    for path in filter(Path.exists, (places.hub, places.alerts_file)):
        path.chmod(0o600)  # what SQLite puts beside them gets the same mode
