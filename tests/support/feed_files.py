"""Feeds in files that are copied and restored, for tests."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import leasehold as lh
from leasehold.core.event import EventData
from leasehold.feeds.container import Container


def can_be_split(container: Container) -> list[str]:
    """Splits in the middle of the documents end with ranges of a single hash."""
    ranges = container.ranges()
    return [each.id for each in ranges if not each.split and each.low < each.high]


class HubFile:
    """What these tests do with a feed: events are letters."""

    key = "partition"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "feed.db"
        self.open = lambda: lh.Hub.open(self.path)

    def create(self) -> Any:
        return lh.Hub.create(self.path, name="sensors", namespace="t", partitions=2)

    def send(self, feed: Any, letters: str, partition: int = 0) -> None:
        feed.send([EventData(json.dumps({"letter": x})) for x in letters], partition_id=partition)


class ContainerFile(HubFile):
    key = "range"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "feed.db"
        self.open = lambda: Container.open(self.path)

    def create(self) -> Any:
        return Container.create(
            self.path, name="sensors", namespace="t", partition_key="/key", ranges=1
        )

    def send(self, feed: Any, letters: str, partition: int = 0) -> None:
        feed.upsert_many([{"id": x, "key": "k", "letter": x} for x in letters])


def copy(path: Path, to: Path) -> None:
    with closing(sqlite3.connect(path)) as db, closing(sqlite3.connect(to)) as copied:
        db.backup(copied)


def restore(copied: Path, path: Path) -> None:
    """Into the same file: Spark's workers of the tests before have it open."""
    copy(copied, path)
