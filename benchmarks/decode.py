"""What bodies cost that do not fit, beside those that do, and whether their neighbours come out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from random import Random

import pyarrow as pa

from benchmarks.row import Row
from homes.domain.reading import body, home_id
from homes.simulator.flaws import MALFORMED
from leasehold.spark.reading.decode import Decoder

SCHEMA = pa.schema(
    [
        ("home_id", pa.string()),
        ("sensor_id", pa.string()),
        ("type", pa.string()),
        ("value", pa.float64()),
        ("battery", pa.float64()),
        ("ts", pa.int64()),
    ]
)
EVENTS = 64_000
NOT_JSON = MALFORMED[:7]
"""Those of them that no schema fits."""
BAD = {0.0: 0.95, 0.001: 17.0, 0.01: 73.0, 1.0: 508.0}
"""Share of bad bodies, and µs an event when a batch with a bad one was cut in two, again and again,
and each half parsed."""
INDENTED_FORMER = 313.0
BAD_TARGET = 5.0


def run(events: int = EVENTS, rounds: int = 5) -> Iterator[Row]:
    good = [_reading(number) for number in range(events)]
    clean = 0.0
    for share, former in BAD.items():
        value = _microseconds(*_spoilt(good, share), rounds)
        clean = clean or value
        yield Row(
            what=f"an event, {share * 100:g} % of the bodies bad",
            value=value,
            unit="µs",
            ratio=value / clean,
            former=former,
            target=BAD_TARGET if share == 1 else None,
        )
    indented = [json.dumps(json.loads(each), indent=2).encode() for each in good]
    value = _microseconds(indented, set(), rounds)
    yield Row(
        what="an event, all on several lines",
        value=value,
        unit="µs",
        ratio=value / clean,
        former=INDENTED_FORMER,
        target=BAD_TARGET,
    )


def _reading(number: int) -> bytes:
    kind = ("motion", "door", "co", "glass")[number % 4]
    return body(home_id(number % 5000), kind, number % 80 / 8, 50 + number % 40, 10**12 + number)


def _spoilt(good: list[bytes], share: float) -> tuple[list[bytes], set[int]]:
    chance = Random(1)
    bad = {row for row in range(len(good)) if chance.random() < share}
    wrong = (chance.choice(NOT_JSON)(each) if row in bad else each for row, each in enumerate(good))
    return list(wrong), bad


def _microseconds(bodies: list[bytes], bad: set[int], rounds: int) -> float:
    """Of the processor: what else runs on the machine does not count."""
    column, decoder = pa.array(bodies, pa.binary()), Decoder(SCHEMA)
    times = []
    for _ in range(rounds):
        began = time.process_time()
        frame, found = decoder.decode(column)
        times.append(time.process_time() - began)
    if set(found.nonzero()[0].tolist()) != bad:
        raise AssertionError("other bodies are bad than those that were spoilt")
    wanted = [None if row in bad else 10**12 + row for row in range(len(bodies))]
    if frame["ts"].to_list() != wanted:
        raise AssertionError("a good body came out changed")
    return 1e6 * min(times) / len(bodies)
