"""Dead letters and filters as rows of a SQL table. Times are in microseconds since 1970."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from leasehold.core import strict_json
from leasehold.core.model import Group
from leasehold.errors import BadInput
from leasehold.ports import DeadLetter, LetterFilter

PURGE_LETTERS = 1_000
"""Removed per transaction."""
AGE_MAX_S = 1e11
CLOCKS_DIFFER_S = 2.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def row_of(letter: DeadLetter) -> dict[str, Any]:
    """Of what is put; the fields from ``number`` on are the store's."""
    group = letter.group
    if not isinstance(letter.body, bytes):
        raise BadInput(f"dead letter of {letter.origin}: body must be bytes")
    if not isinstance(letter.attempts, int) or not -(2**63) <= letter.sequence < 2**63:
        raise BadInput(
            f"dead letter of {letter.origin}: attempts and sequence must be integers of 64 bits"
        )
    try:
        for text in (letter.partition_key or "", letter.token, letter.error):
            text.encode()  # lone surrogates
        # What JSON does not have would be stored, and no page with the letter could be read.
        properties = json.dumps(dict(letter.properties), allow_nan=False)
        if "\\ud" in properties:
            strict_json.loads(properties)  # half of a surrogate pair
        enqueued_us = (letter.enqueued_at - _EPOCH) // timedelta(microseconds=1)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"dead letter of {letter.origin}: texts must be valid Unicode, properties plain values "
            f"under text names, and enqueued_at must have a time zone: {error}"
        ) from error
    return {
        "id": letter.id,
        "namespace": group.namespace,
        "feed": group.feed,
        "group_name": group.name,
        "partition": letter.partition,
        "sequence": letter.sequence,
        "token": letter.token,
        "attempts": letter.attempts,
        "enqueued_us": enqueued_us,
        "partition_key": letter.partition_key,
        "error": letter.error,
        "properties": properties,
        "body": letter.body,
    }


def letter_of(row: Sequence[Any]) -> DeadLetter:
    namespace, feed, name, partition, sequence, token, body, properties, key, *rest = row
    enqueued_us, error, attempts, number, dead_us, redriven_us, redrives = rest
    return DeadLetter(
        group=Group(namespace=namespace, feed=feed, name=name),
        partition=partition,
        sequence=sequence,
        token=token,
        body=body,
        properties=strict_json.loads(properties),
        partition_key=key,
        enqueued_at=time_of(enqueued_us),
        error=error,
        attempts=attempts,
        number=number,
        dead_at=time_of(dead_us),
        redriven_at=None if redriven_us is None else time_of(redriven_us),
        redrives=redrives,
    )


def filter_values(which: LetterFilter) -> dict[str, Any]:
    check_age(which)
    older_than_s = which.older_than_s
    return {
        "namespace": which.namespace,
        "feed": which.feed,
        "group_name": which.group,
        "partition": which.partition,
        "ids": None if which.ids is None else list(which.ids),
        "redriven": which.redriven,
        "older_than_us": None if older_than_s is None else int(older_than_s * 1e6),
        "up_to": which.up_to,
    }


def check_age(which: LetterFilter) -> None:
    older_than_s = which.older_than_s
    if older_than_s is not None and not 0 <= older_than_s <= AGE_MAX_S:
        raise BadInput(f"older_than_s is {older_than_s}; give 0 to {AGE_MAX_S:.0f} seconds")


def check_limit(limit: int) -> None:
    if limit < 0:
        raise BadInput(f"limit is {limit}; give 0 or more")


def time_of(unix_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=unix_us)


def store_time_us(date_s: float, wall_s: float) -> int:
    """The store tells whole seconds only: the own clock is finer, and is used while it agrees."""
    agrees = not date_s or abs(wall_s - date_s) <= CLOCKS_DIFFER_S
    return int((wall_s if agrees else date_s) * 1e6)
