"""``leasehold hub``: make an embedded hub, send to it, read it, look at it."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from typer import Argument, Option, Typer, echo

from leasehold.cli.hub_by_url import feed_info, is_url, read_events
from leasehold.cli.hub_input import SendTotals, lines_of, send_lines
from leasehold.cli.hub_serve import serve
from leasehold.cli.options import (
    START,
    AsJson,
    Fsync,
    HubPath,
    HubUrl,
    console,
    counted,
    notes,
    opened_sender,
    printable,
    size,
)
from leasehold.cli.tables import Column, FittedTable
from leasehold.core.event import Event
from leasehold.errors import BadInput
from leasehold.feeds.hub import Hub, HubProperties

LINE_BYTES_MAX = 1 << 20
"""Where the one that is sent to does not say."""

app = Typer(help="Create an embedded hub, send to it, read it, inspect it.", no_args_is_help=True)
app.command()(serve)


@app.command()
def create(
    hub: HubPath,
    *,
    partitions: Annotated[
        int, Option(help="Number of partitions; can be raised later, never lowered.")
    ] = 16,
    namespace: Annotated[str, Option(help="The hub's namespace.")] = "local",
    name: Annotated[str | None, Option(help="The hub's name (default: the file's name).")] = None,
    retention_s: Annotated[
        float | None, Option(help="Seconds to keep events (default: forever).")
    ] = None,
    retention_bytes: Annotated[
        int | None, Option(help="Bytes to keep, compressed (default: no limit).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a hub."""
    with Hub.create(
        hub,
        name=hub.stem if name is None else name,
        namespace=namespace,
        partitions=partitions,
        retention_s=retention_s,
        retention_bytes=retention_bytes,
    ) as made:
        properties = made.properties()
    if as_json:
        echo(json.dumps(_info(properties)))
    else:
        where = f"{namespace}/{properties.name} at {hub}"
        echo(f"made the hub {where} with {counted(partitions, 'partition')}")


@app.command()
def send(
    hub: HubUrl,
    bodies: Annotated[
        list[str] | None,
        Argument(metavar="[BODY]...", help="Event bodies (default: the lines of stdin)."),
    ] = None,
    *,
    file: Annotated[
        Path | None, Option(help="Send the lines of this file, one event each; - is stdin.")
    ] = None,
    key: Annotated[str | None, Option(help="The partition key of all events.")] = None,
    key_field: Annotated[
        str | None, Option(help="Bodies are JSON objects; this field is the partition key.")
    ] = None,
    partition: Annotated[
        str | None, Option(help="The partition (default: by key, or each in turn).")
    ] = None,
    fsync: Fsync = False,
    as_json: AsJson = False,
) -> None:
    """Send events: the arguments, or each line of a file or of standard input.

    Empty lines are skipped. What was sent before an error stays sent; the message says how much.
    HUB may be a Kafka topic as well: kafka://b1:9092,b2:9092/topic
    """
    if bodies and file is not None:
        raise BadInput("give events as arguments or in a --file, not both")
    given = {"--key": key, "--key-field": key_field, "--partition": partition}
    if len(chosen := [name for name, value in given.items() if value is not None]) > 1:
        raise BadInput(f"{' and '.join(chosen)} contradict each other: give one")
    sent = SendTotals()
    with (
        opened_sender(hub, **({"fsync": True} if fsync else {})) as opened,
        lines_of(bodies, file, getattr(opened, "batch_bytes_max", LINE_BYTES_MAX)) as lines,
    ):
        try:
            send_lines(opened, lines, sent, key=key, key_field=key_field, partition=partition)
        except BaseException:
            if lines.number:
                notes.print(
                    f"{counted(sent.events, 'event')} had been sent, all up to line "
                    f"{sent.up_to_line:,}",
                    highlight=False,
                )
            raise
    if as_json:
        echo(json.dumps({"events": sent.events, "partitions": sent.partitions}))
    else:
        into = counted(len(sent.partitions), "partition") if sent.partitions else opened.name
        if len(sent.partitions) == 1:
            ((only, place),) = sent.partitions.items()
            into = f"partition {only}, from sequence {place['first_sequence']:,} on"
        echo(f"sent {counted(sent.events, 'event')}" + (f" to {into}" if sent.events else ""))


@app.command()
def read(
    hub: HubUrl,
    partition: Annotated[
        list[str] | None, Option(help="Only this partition; may be given several times.")
    ] = None,
    start: Annotated[str, Option("--from", metavar="START", help=START)] = "earliest",
    max_events: Annotated[
        int, Option("--max", help="Print at most this many events; 0 means all.", min=0)
    ] = 100,
    as_json: Annotated[bool, Option("--json", help="A JSON object per line and event.")] = False,
) -> None:
    """Print events, partition by partition, without touching any group's checkpoint."""

    def show(event: Event) -> None:
        echo(json.dumps(_event(event)) if as_json else _line(event))

    if is_url(hub):
        read_events(hub, partition or (), start, max_events or None, show)
        return
    with _open(hub) as opened:
        chosen = partition or opened.properties().partition_ids
        starts = {number: opened.position_of(number, start) for number in chosen}
        events = (event for number, at in starts.items() for event in _events(opened, number, at))
        for event in islice(events, max_events or None):
            show(event)


@app.command()
def info(hub: HubUrl, as_json: AsJson = False) -> None:
    """Show what a hub holds: first and last sequence, last time and size of each partition."""
    if is_url(hub):
        values, table = feed_info(hub)
        if as_json:
            console.print_json(json.dumps(values))
        else:
            echo(f"{'hub':14}{values['namespace']}/{values['name']}")
            echo(f"{'events':14}{values['events']:,}")
            console.print(table)
        return
    with _open(hub) as opened:
        properties = opened.properties()
    if as_json:
        console.print_json(json.dumps(_info(properties)))
        return
    about = {
        "hub": f"{properties.namespace}/{properties.name} at {hub}",
        "made": _time(properties.created_at),
        "events": f"{properties.events:,} in {counted(len(properties.partitions), 'partition')}",
        "bodies": f"{size(properties.body_bytes)}, compressed to {size(properties.stored_bytes)}",
        "file": size(properties.file_bytes),
        "keeps": _retention(properties),
        "largest batch": size(properties.batch_bytes_max),
    }
    for what, text in about.items():
        echo(f"{what:14}{text}")
    console.print(_table(properties))


def _events(hub: Hub, partition: str, position: Any) -> Any:
    while True:
        batch = hub.read_batch(partition, position, 1000)
        if not batch.events:
            return
        yield from batch.events
        position = batch.next


def _event(event: Event) -> dict[str, Any]:
    try:
        body = {"body": event.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(event.body).decode()}
    return {
        "partition": event.partition,
        "sequence": event.sequence,
        "offset": event.offset,
        "enqueued_at": event.enqueued_at.isoformat(),
        "partition_key": event.partition_key,
        "properties": dict(event.properties),
    } | body


def _line(event: Event) -> str:
    key = "-" if event.partition_key is None else printable(event.partition_key)
    body = printable(event.body.decode(errors="backslashreplace"))
    return f"{event.partition}/{event.sequence}  {_time(event.enqueued_at)}  {key}  {body}"


def _info(properties: HubProperties) -> dict[str, Any]:
    values: dict[str, Any] = asdict(properties) | {
        "created_at": properties.created_at.isoformat(),
        "events": properties.events,
        "body_bytes": properties.body_bytes,
        "stored_bytes": properties.stored_bytes,
    }
    values["partitions"] = [
        asdict(partition)
        | {
            "last_sequence": partition.last_sequence,
            "events": partition.events,
            "last_enqueued_at": (
                partition.last_enqueued_at and partition.last_enqueued_at.isoformat()
            ),
        }
        for partition in properties.partitions
    ]
    return values


def _table(properties: HubProperties) -> FittedTable:
    names = ("partition", "first", "last", "events", "last enqueued", "bodies", "stored")
    table = FittedTable(*(Column(name=name) for name in names))
    for partition in properties.partitions:
        kept = partition.events > 0
        table.add_row(
            partition.partition,
            f"{partition.first_sequence:,}" if kept else "-",
            f"{partition.last_sequence:,}" if partition.next_sequence else "-",
            f"{partition.events:,}",
            _time(partition.last_enqueued_at)[:19],
            size(partition.body_bytes),
            size(partition.stored_bytes),
        )
    return table


def _retention(properties: HubProperties) -> str:
    limits = []
    if properties.retention_s is not None:
        limits.append(f"events for {properties.retention_s:,.0f} s")
    if properties.retention_bytes is not None:
        limits.append(f"at most {size(properties.retention_bytes)}")
    return " and ".join(limits) or "everything"


def _time(time: datetime | None) -> str:
    return "-" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


def _open(hub: str, *, fsync: bool = False) -> Hub:
    path = Path(unquote(urlsplit(hub).path)) if hub.startswith("file://") else Path(hub)
    if not path.exists():
        raise BadInput(f"there is no hub at {path}; make one with: leasehold hub create {path}")
    return Hub.open(path, fsync=fsync)
