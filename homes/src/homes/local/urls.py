"""Which parts of the application are beyond its folder: feed, stores, table, Spark cluster."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from leasehold import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Urls:
    """Each is a URL, or empty for the embedded part in the folder. Secrets are in no URL: every
    part takes them from the environment."""

    feed: str = ""
    """Where the sensors send to: ``kafka://b1:9092/readings``."""
    store: str = ""
    """Of the leases: ``postgresql://…``."""
    dead_letters: str = ""
    alerts: str = ""
    """The container of the alerts: ``cosmos://account.documents.azure.com/homes/alerts``."""
    table: str = ""
    """The Delta table of the aggregates: ``az://container/activity``."""
    archive: str = ""
    """Where alerts are moved to: ``azure-blob://account/container``."""
    spark: str = ""
    """The master of a Spark cluster: ``spark://host:7077``."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a TOML file, under the names above."""
        try:
            found = tomllib.loads(path.read_text())
        except FileNotFoundError:
            raise BadInput(f"there is no file {path}; {_example()}") from None
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise BadInput(f"{path} cannot be read: {error}; {_example()}") from error
        return cls().replaced(found, f"{path}: ")

    def replaced(self, given: Mapping[str, Any], where: str = "") -> Self:
        """With those that are given in place of these."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in given.items():
            if name not in known:
                raise BadInput(f"{where}{name} is unknown; valid are {', '.join(known)}")
            if not isinstance(value, str):
                raise BadInput(f"{where}{name} is {value!r}; give a URL as text")
        return type(self)(**{**known, **given})


EMBEDDED = Urls()


def _example() -> str:
    return 'it holds lines such as feed = "kafka://b1:9092/readings"'
