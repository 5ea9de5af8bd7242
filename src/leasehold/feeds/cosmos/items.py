"""Changes, as Cosmos DB writes them and as a handler gets them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from leasehold.core.change import Change, Mode, Operation
from leasehold.feeds.cosmos.tokens import Bounds, Position, token
from leasehold.feeds.effective_keys import UNDEFINED, KeyValue, effective_key, path_parts

OPERATIONS: dict[str, Operation] = {"create": "insert", "replace": "replace", "delete": "delete"}


class ChangeReader:
    """Turns items of one container into changes."""

    def __init__(self, identity: str, key_paths: Sequence[str], mode: Mode) -> None:
        self._identity = identity
        self._paths = [path_parts(path) for path in key_paths]
        self._mode = mode

    def changes(
        self,
        partition: str,
        bounds: Bounds,
        items: Sequence[dict[str, Any]],
        begin: Position,
        *,
        clip: bool,
    ) -> list[Change]:
        """Those behind ``begin``. ``clip``: only keys within the bounds; the range that was asked
        has others, too."""
        if clip:
            items = [
                item for item in items if bounds.low <= effective_key(self._key(item)) < bounds.end
            ]
        found = []
        for lsn, group in groupby(items, key=self.lsn_of):
            same = list(group)
            for place, item in enumerate(same, 1):
                if lsn == begin.lsn and place <= _skipped(begin, len(same)):
                    continue
                left = len(same) - place
                # Only the last one of its LSN stands for all of it.
                offset = token(self._identity, bounds, lsn, place if left else 0, left)
                found.append(self._change(partition, offset, item, more_follow=left > 0))
        return found

    def lsn_of(self, item: dict[str, Any]) -> int:
        return int(item["metadata"]["lsn"] if self._mode == "all" else item["_lsn"])

    def time_of(self, item: dict[str, Any]) -> datetime:
        seconds = item["metadata"]["crts"] if self._mode == "all" else item["_ts"]
        return datetime.fromtimestamp(int(seconds), UTC)

    def _change(
        self, partition: str, offset: str, item: dict[str, Any], *, more_follow: bool
    ) -> Change:
        lsn, time, key = self.lsn_of(item), self.time_of(item), _text(self._key(item))
        if self._mode == "latest":
            return Change(
                item, "upsert", lsn, offset, time, partition, key, more_follow=more_follow
            )
        about = item["metadata"]
        operation = OPERATIONS.get(about.get("operationType", ""), "replace")
        document = item.get("current") or None
        return Change(
            None if operation == "delete" or document is None else document | {"_lsn": lsn},
            operation,
            lsn,
            offset,
            time,
            partition,
            key,
            item.get("previous") or None,
            bool(about.get("timeToLiveExpired")),
            more_follow,
        )

    def _key(self, item: dict[str, Any]) -> KeyValue:
        if self._mode == "all":
            item = item.get("current") or item.get("previous") or _named(item["metadata"])
        values = tuple(_reached(item, path) for path in self._paths)
        return values if len(values) != 1 else values[0]


def _skipped(begin: Position, there_are: int) -> int:
    """How many of the changes of its LSN are done. There may be fewer than when it was begun: some
    documents were changed again or deleted, or a split has parted them. Those that were left are
    among the last ones. What cannot be told from them comes again."""
    return 0 if begin.left is None else max(there_are - begin.left, 0)


def _named(about: dict[str, Any]) -> dict[str, Any]:
    """Of a deleted document nothing may be left but its key."""
    key: dict[str, Any] = about.get("partitionKey") or {}
    return key


def _reached(item: Any, path: Sequence[str]) -> Any:
    for part in path:
        item = item.get(part, UNDEFINED) if isinstance(item, dict) else UNDEFINED
    return UNDEFINED if isinstance(item, dict | list) else item


def _text(key: KeyValue) -> str | None:
    if isinstance(key, tuple):
        return ", ".join(str(_text(each)) for each in key)
    if isinstance(key, bool):
        return str(key).lower()
    return None if key is None or key is UNDEFINED else str(key)
