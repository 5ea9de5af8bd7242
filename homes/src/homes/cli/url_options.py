"""The options that name what is beyond the application's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from homes.local.urls import Urls

ConfigFile = Annotated[
    Path | None, Option(metavar="homes.toml", help="A file that has the URLs below, by name.")
]
FeedUrl = Annotated[
    str | None, Option(metavar="URL", help="The readings: kafka://b1:9092/readings; else a file.")
]
StoreUrl = Annotated[str | None, Option(metavar="URL", help="The leases: postgresql://…")]
DeadLettersUrl = Annotated[
    str | None, Option(metavar="URL", help="The dead letters: postgresql://…, azure-blob://…")
]
AlertsUrl = Annotated[
    str | None, Option(metavar="URL", help="The container of the alerts: cosmos://…; else a file.")
]
TableUrl = Annotated[
    str | None, Option(metavar="URL", help="The Delta table of the aggregates: az://…")
]
ArchiveUrl = Annotated[
    str | None, Option(metavar="URL", help="Where alerts are archived: azure-blob://…")
]
SparkUrl = Annotated[
    str | None, Option(metavar="URL", help="A Spark cluster: spark://host:7077; else this machine.")
]


def urls_of(config: Path | None, **given: str | None) -> Urls:
    """Options count for more than the file."""
    urls = Urls() if config is None else Urls.read(config)
    return urls.replaced({name: url for name, url in given.items() if url is not None})
