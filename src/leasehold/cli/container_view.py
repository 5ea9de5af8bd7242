"""How a container and its changes are shown."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leasehold.cli.options import counted, printable, size
from leasehold.cli.tables import Column, FittedTable
from leasehold.core.change import Change
from leasehold.core.model import partition_order
from leasehold.feeds.container import ContainerProperties, RangeProperties


def change_values(change: Change) -> dict[str, Any]:
    return {
        "range": change.range,
        "lsn": change.lsn,
        "time": change.time.isoformat(),
        "partition_key": change.partition_key,
        "operation": change.operation,
        "expired": change.expired,
        "document": change.document,
        "previous": change.previous,
    }


def change_line(change: Change) -> str:
    document = json.dumps(change.document or change.previous, ensure_ascii=False)
    what = "expired" if change.expired else change.operation
    place = f"{change.range}/{change.lsn}"
    return f"{place}  {_time(change.time)}  {what}  {printable(document)}"


def info_values(properties: ContainerProperties) -> dict[str, Any]:
    ranges = [range_values(each) for each in properties.ranges]
    return asdict(properties) | {"ranges": ranges}


def range_values(each: RangeProperties) -> dict[str, Any]:
    values: dict[str, Any] = each._asdict()
    return values | {"low": f"{each.low:08x}", "high": f"{each.high:08x}"}


def ranges_table(properties: ContainerProperties) -> FittedTable:
    names = ("range", "split from", "hashes", "documents", "next LSN")
    table = FittedTable(*(Column(name=name) for name in names))
    for each in sorted(properties.ranges, key=lambda each: partition_order(each.id)):
        table.add_row(
            each.id,
            each.parent or "-",
            f"{each.low:08x} to {each.high:08x}",
            "split" if each.split else f"{each.documents:,}",
            f"{each.next_lsn:,}",
        )
    return table


def _kept(seconds: float | None) -> str:
    if seconds is None:
        return "kept forever"
    return f"kept for {seconds:,.0f} s" if seconds else "not kept"


def _ttl(seconds: float | None) -> str:
    if seconds is None:
        return "off"
    return "by a document's own field" if seconds == -1 else f"{seconds:,.0f} s"


def _time(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


def about(properties: ContainerProperties, container: Path) -> dict[str, str]:
    leaves = sum(not each.split for each in properties.ranges)
    splits = properties.split_documents
    return {
        "container": f"{properties.namespace}/{properties.name} at {container}",
        "made": _time(datetime.fromtimestamp(properties.created_at, UTC)),
        "partition key": properties.key_path,
        "documents": f"{properties.documents:,} in {counted(leaves, 'range')}",
        "next LSN": f"{properties.next_lsn:,}",
        "file": size(properties.file_bytes),
        "all versions": _kept(properties.versions_s),
        "ttl": _ttl(properties.ttl_s),
        "splits": "by hand" if splits is None else f"above {counted(splits, 'document')}",
        "largest": size(properties.document_bytes_max),
    }
