"""``leasehold container``: make an embedded container, write to it, read its change feed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

from typer import Argument, Exit, Option, Typer, echo

from leasehold.cli.container_serve import serve
from leasehold.cli.container_view import (
    about,
    change_line,
    change_values,
    info_values,
    range_values,
    ranges_table,
)
from leasehold.cli.options import AsJson, Fsync, console, counted, notes, printable
from leasehold.core import strict_json
from leasehold.core.change import Mode
from leasehold.errors import BadInput
from leasehold.feeds.container import DOCUMENT_BYTES_MAX, VERSIONS_S, Container
from leasehold.feeds.container.change_feed import Continuation
from leasehold.settings import CONTAINER_RANGES, ITEMS_MAX

PUT_STEP = 1000
STDIN = Path("-")
START = "beginning, now, sequence:N, offset:X or time:2026-01-31T12:00:00Z"

app = Typer(
    help="Create an embedded container, write documents, read its change feed, split ranges.",
    no_args_is_help=True,
)
ContainerPath = Annotated[
    Path, Argument(metavar="CONTAINER", help="The container's file, such as data/alerts.db")
]
app.command()(serve)
KeyOption = Annotated[str, Option("--key", metavar="KEY", help="The partition key.")]
KeyIsNumber = Annotated[bool, Option("--number", help="The partition key is a number, not text.")]
IfMatch = Annotated[
    str | None, Option("--if-match", metavar="ETAG", help="Only if it has this _etag.")
]


@app.command()
def create(
    container: ContainerPath,
    *,
    partition_key: Annotated[
        str, Option(metavar="PATH", help="Where documents have their key, such as /home_id")
    ],
    ranges: Annotated[
        int, Option(help="Number of ranges at first; they split later.")
    ] = CONTAINER_RANGES,
    namespace: Annotated[str, Option(help="The container's namespace.")] = "local",
    name: Annotated[
        str | None, Option(help="The container's name (default: the file's name).")
    ] = None,
    ttl_s: Annotated[
        float | None,
        Option(help="Seconds that documents live; -1: only their own field ttl counts."),
    ] = None,
    versions_s: Annotated[
        float, Option(help="Seconds to keep all versions; 0: keep none, -1: forever.")
    ] = VERSIONS_S,
    split_documents: Annotated[
        int | None, Option(help="A range with more documents splits by itself.")
    ] = None,
    document_bytes_max: Annotated[int, Option(help="The largest document.")] = DOCUMENT_BYTES_MAX,
    as_json: AsJson = False,
) -> None:
    """Create a container."""
    with Container.create(
        container,
        name=container.stem if name is None else name,
        namespace=namespace,
        partition_key=partition_key,
        ranges=ranges,
        ttl_s=ttl_s,
        versions_s=None if versions_s == -1 else versions_s,
        split_documents=split_documents,
        document_bytes_max=document_bytes_max,
    ) as made:
        properties = made.properties()
    if as_json:
        echo(json.dumps(info_values(properties)))
    else:
        where = f"{namespace}/{properties.name} at {container}"
        echo(f"made the container {where} with {counted(ranges, 'range')}")


@app.command()
def put(
    container: ContainerPath,
    documents: Annotated[
        list[str] | None,
        Argument(metavar="[DOCUMENT]...", help="JSON objects (default: the lines of stdin)."),
    ] = None,
    *,
    file: Annotated[
        Path | None, Option(help="Put the lines of this file, one document each; - is stdin.")
    ] = None,
    if_match: IfMatch = None,
    fsync: Fsync = False,
    as_json: Annotated[bool, Option("--json", help="The stored documents, one per line.")] = False,
) -> None:
    """Insert or replace documents.

    Empty lines are skipped. What was stored before an error stays stored; the message
    says how much.
    """
    if documents and file is not None:
        raise BadInput("give documents as arguments or in a --file, not both")
    given = _numbered(documents, file)
    stored = 0
    with _open(container, fsync=fsync) as opened:
        try:
            if if_match is not None:
                ((_, only),) = _exactly_one(given)
                _show_stored([opened.upsert(only, if_match=if_match)], as_json)
                stored = 1
            while step := list(islice(given, PUT_STEP)):
                _show_stored(_put(opened, step), as_json)
                stored += len(step)
        except BaseException:
            if stored:
                notes.print(f"{counted(stored, 'document')} had been stored", highlight=False)
            raise
    if not as_json:
        echo(f"stored {counted(stored, 'document')}")


@app.command()
def get(
    container: ContainerPath,
    id: Annotated[
        str | None, Argument(help="The document's id (default: all documents of the key).")
    ] = None,
    *,
    key: KeyOption,
    number: KeyIsNumber = False,
    as_json: Annotated[bool, Option("--json", help="Each document on one line.")] = False,
) -> None:
    """Print a document, or all of a partition key. Exits with 1 if there is none."""
    with _open(container) as opened:
        wanted = _key(key, number)
        if id is None:
            found = _of_key(opened, wanted)
        else:
            document = opened.read(id, wanted)
            found = iter([] if document is None else [document])
        count = 0
        for document in found:
            echo(json.dumps(document, ensure_ascii=False, indent=None if as_json else 2))
            count += 1
    if not count:
        what = f"no document of partition key {key!r}" if id is None else f"no document {id!r}"
        notes.print(f"there is {printable(what)}", highlight=False, markup=False)
        raise Exit(1)


@app.command()
def delete(
    container: ContainerPath,
    id: Annotated[str, Argument(help="The document.")],
    *,
    key: KeyOption,
    number: KeyIsNumber = False,
    if_match: IfMatch = None,
    as_json: AsJson = False,
) -> None:
    """Delete a document. Exits with 1 if there is none."""
    with _open(container) as opened:
        deleted = opened.delete(id, _key(key, number), if_match=if_match)
    if as_json:
        echo(json.dumps({"deleted": deleted}))
    else:
        echo(f"deleted {printable(id)}" if deleted else f"there is no document {printable(id)!r}")
    if not deleted:
        raise Exit(1)


@app.command()
def changes(
    container: ContainerPath,
    *,
    range: Annotated[
        list[str] | None, Option("--range", help="Only this range; may be given several times.")
    ] = None,
    mode: Annotated[str, Option(help="latest: newest states; all: all versions.")] = "latest",
    start: Annotated[str, Option("--from", metavar="START", help=START)] = "beginning",
    continuation: Annotated[
        list[str] | None,
        Option(metavar="TEXT", help="Resume where an earlier read ended, in its range and mode."),
    ] = None,
    max_items: Annotated[
        int, Option("--max", help="Print at most this many changes; 0 means all.", min=0)
    ] = ITEMS_MAX,
    as_json: Annotated[bool, Option("--json", help="A JSON object per line and change.")] = False,
) -> None:
    """Print changes, range by range, then the continuations to resume from (on stderr).

    No unit's checkpoint is touched.
    """
    if continuation and range:
        raise BadInput("a --continuation has its range already: give no --range")
    with _open(container) as opened:
        places = [Continuation.parse(text) for text in continuation or ()]
        if not places:
            feed = opened.feed(cast(Mode, mode))
            ranges = range or [each.id for each in opened.ranges() if not each.split]
            places = [Continuation(feed.mode, r, feed.position_of(r, start)) for r in ranges]
        left = max_items or sys.maxsize
        for text in _follow(opened, [str(place) for place in places], left, as_json):
            notes.print(f"--continuation {text}", highlight=False, soft_wrap=True)


@app.command()
def split(
    container: ContainerPath,
    range: Annotated[str, Argument(help="The range.")],
    *,
    at: Annotated[
        str | None,
        Option(metavar="HASH", help="Split before this hash (8 hex digits; default: evenly)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Split a range in two. Readers finish it, then continue in both."""
    with _open(container) as opened:
        children = opened.split(range, at=None if at is None else _hash(at))
        found = [each for each in opened.ranges() if each.id in children]
    if as_json:
        echo(json.dumps({"range": range, "children": [range_values(each) for each in found]}))
        return
    halves = " and ".join(f"{r.id} ({counted(r.documents, 'document')})" for r in found)
    echo(f"split range {range} into {halves}")


@app.command()
def info(container: ContainerPath, as_json: AsJson = False) -> None:
    """Show what a container holds: its settings, and its ranges with parents and bounds."""
    with _open(container) as opened:
        properties = opened.properties()
    if as_json:
        console.print_json(json.dumps(info_values(properties)))
        return
    for what, text in about(properties, container).items():
        echo(f"{what:14}{text}")
    console.print(ranges_table(properties))


def _open(path: Path, *, fsync: bool = False) -> Container:
    if not path.exists():
        raise BadInput(
            f"there is no container at {path}; make one with: leasehold container create {path} "
            "--partition-key /FIELD"
        )
    return Container.open(path, fsync=fsync)


def _numbered(documents: Sequence[str] | None, file: Path | None) -> Iterator[tuple[str, Any]]:
    """Parsed documents, each with where it came from."""
    if documents:
        for place, text in enumerate(documents, 1):
            yield _parsed(f"document {place}", text)
        return
    try:
        opened = None if file in (None, STDIN) else Path(str(file)).open("rb")  # noqa: SIM115
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from error
    with opened or sys.stdin.buffer as lines:
        for place, line in enumerate(lines, 1):
            if line.strip():
                yield _parsed(f"line {place:,}", line)


def _parsed(where: str, text: str | bytes) -> tuple[str, Any]:
    try:
        return where, strict_json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where} is not JSON: {error}") from error


def _exactly_one(given: Iterator[tuple[str, Any]]) -> list[tuple[str, Any]]:
    few = list(islice(given, 2))
    if len(few) != 1:
        raise BadInput("--if-match is for one document at a time")
    return few


def _put(container: Container, step: Sequence[tuple[str, Any]]) -> Sequence[dict[str, Any]]:
    try:
        return container.upsert_many(document for _, document in step)
    except BadInput as error:
        raise BadInput(f"{step[0][0]} to {step[-1][0]}: {error}") from error


def _show_stored(stored: Sequence[dict[str, Any]], as_json: bool) -> None:
    for document in stored if as_json else ():
        echo(json.dumps(document, ensure_ascii=False))


def _of_key(container: Container, key: str | int) -> Iterator[dict[str, Any]]:
    after = ""
    while page := container.list(key, after=after):
        yield from page
        after = page[-1]["id"]


def _key(text: str, number: bool) -> str | int:
    if not number:
        return text
    try:
        return int(text)
    except ValueError:
        raise BadInput(f"--key {text!r} is not a whole number") from None


def _hash(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise BadInput(f"--at {text!r}: a hash is written as hexadecimal digits") from None


def _follow(
    container: Container, continuations: Sequence[str], left: int, as_json: bool
) -> Iterator[str]:
    """Print changes, and give back where to go on; children take the place of split ranges."""
    todo = list(continuations)
    while todo:
        text = todo.pop(0)
        place = Continuation.parse(text)
        page = None
        while left and (page is None or page.changes):
            page = container.changes(place.range, text, min(left, 1000), mode=place.mode)
            for change in page.changes:
                echo(
                    json.dumps(change_values(change), ensure_ascii=False)
                    if as_json
                    else change_line(change)
                )
            left -= len(page.changes)
            text = page.continuation
        if page is not None and page.children:
            todo[:0] = page.children.values()
        else:
            yield text
