"""Where Azure's own change feed processors for .NET and Java have got to, from their lease
container. Nothing is written to it.

A lease's id is ``{processor}{host}_{database rid}_{container rid}..{token}``, with the token
``{min}-{max}``, the bounds of a range. Java's ``handleChanges`` has names in place of the rids, and
both that and older leases of .NET have the id of a range as token. The continuation is an LSN in
quotes; Java's other handlers have LSNs by bounds, as JSON in base64.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from azure.core.exceptions import AzureError
from azure.cosmos.exceptions import CosmosHttpResponseError

from leasehold.core import strict_json
from leasehold.errors import BadInput, FeedUnavailable
from leasehold.feeds.cosmos.tokens import Bounds
from leasehold.local.cosmos import CosmosConnection, CosmosSettings

QUERY = (
    "SELECT c.id, c.LeaseToken, c.PartitionId, c.ContinuationToken FROM c "
    "WHERE IS_DEFINED(c.ContinuationToken)"
)
_BOUNDS = re.compile(r"([0-9A-Fa-f]*)-([0-9A-Fa-f]+)", re.ASCII)
_LSN = re.compile(r'"?(\d{1,18})"?', re.ASCII)


class Monitored(NamedTuple):
    """The container that the leases are about, by the names that ids of leases may have of it."""

    database: str
    container: str
    rid: str

    def processor_in(self, head: str) -> str | None:
        """Name and host, from what an id begins with; None: it is about another container."""
        names = f"_{self.database}_{self.container}"
        if head.endswith(names):
            return head.removesuffix(names)
        found = re.fullmatch(rf"(.*)_[^_]+_{re.escape(self.rid)}", head, re.DOTALL)
        return found and found[1]


@dataclass(frozen=True, slots=True)
class StockLease:
    """One position: all changes up to an LSN are done in a range or within bounds."""

    processor: str
    range: str | None
    bounds: Bounds | None
    lsn: int | None
    """None: no batch was finished yet."""

    def covers(self, ids: Collection[str], bounds: Bounds) -> bool:
        """``ids``: of a range and of those that it came from."""
        if self.bounds is not None:
            return self.bounds.overlaps(bounds)
        return self.range is not None and self.range in ids


def read_leases(url: str, monitored: Monitored) -> list[StockLease]:
    """Those of one container; ``?processor=NAME`` says of which processor, if there are several."""
    settings = CosmosSettings.from_url(url, more=("processor",))
    connection = CosmosConnection(settings)
    where = f"start 'leases:{settings.address}'"
    try:
        found = list(
            connection.container.query_items(
                QUERY,
                enable_cross_partition_query=True,
                raw_response_hook=connection.counting("locate"),
            )
        )
    except CosmosHttpResponseError as error:
        if error.status_code in (401, 403, 404):
            raise BadInput(f"{where}: {error.status_code}, it cannot be read") from error
        raise FeedUnavailable(f"{where}: answered {error.status_code}") from error
    except AzureError as error:
        raise FeedUnavailable(f"{where}: does not answer: {error}") from error
    finally:
        connection.close()
    leases = [lease for each in found for lease in leases_in(each, monitored)]
    return _of_one(leases, settings.more.get("processor"), where)


def leases_in(document: dict[str, Any], monitored: Monitored) -> list[StockLease]:
    """None of them: it is no lease, or one of another container."""
    head, dots, _ = str(document.get("id")).rpartition("..")
    token = document.get("LeaseToken") or document.get("PartitionId")
    processor = monitored.processor_in(head)
    if not dots or processor is None or not isinstance(token, str):
        return []
    written = document.get("ContinuationToken")
    parts = _BOUNDS.fullmatch(token)
    bounds = Bounds(parts[1].upper(), parts[2].upper()) if parts else None
    if written is None:
        return [StockLease(processor, None if bounds else token, bounds, None)]
    if lsn := _LSN.fullmatch(str(written)):
        return [StockLease(processor, None if bounds else token, bounds, int(lsn[1]))]
    return [StockLease(processor, None, *each) for each in _state(str(written), document["id"])]


def _state(text: str, id: str) -> list[tuple[Bounds, int | None]]:
    """As Java writes it: one or, after a split, several."""
    try:
        state = strict_json.loads(b64decode(text, validate=True).decode())
        return [
            (
                Bounds(str(each["range"]["min"]).upper(), str(each["range"]["max"]).upper()),
                int(_LSN.fullmatch(each["token"])[1]) if each.get("token") else None,  # type: ignore[index]
            )
            for each in state["Continuation"]["Continuation"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"the lease {id!r} has a continuation that is not understood") from error


def _of_one(leases: Sequence[StockLease], wanted: str | None, where: str) -> list[StockLease]:
    """The processor's name is followed by the account's host, which may be spelled in several
    ways; so a name is told by how it begins."""
    if wanted is not None:
        leases = [each for each in leases if each.processor.startswith(wanted)]
    processors = sorted({each.processor for each in leases})
    if not leases:
        raise BadInput(f"{where}: there are no leases of this container's change feed")
    if len(processors) > 1:
        raise BadInput(
            f"{where}: there are leases of {len(processors)} processors ({', '.join(processors)}); "
            "add ?processor=NAME"
        )
    return list(leases)
