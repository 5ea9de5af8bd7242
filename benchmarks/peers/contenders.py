"""Who is compared, in which settings, and the virtual environments of those that are not ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".tools" / "peers"
CONNECTOR = ROOT / ".tools" / "jars" / "spark-kafka"
"""Spark's own connector for Kafka; ``tools/set_up.py spark-kafka`` fetches it."""
SESSION_S = 10.0
"""As long as a lease of ours lives by default, for all that can be told so."""
COOPERATIVE = "cooperative-sticky"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    name: str
    short: str
    """For plots."""
    program: str
    """The module of its members."""
    packages: str = ""
    """The file of its packages, if it has a virtual environment of its own."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    kills: int = 3
    said: str
    """How it is set, for the page."""

    @property
    def python(self) -> Path:
        own = ENVIRONMENTS / self.packages / "bin" / "python"
        return own if self.packages else Path(sys.executable)


def leasehold(store: str, name: str, short: str) -> Contender:
    return Contender(
        name=f"Leasehold, leases in {name}",
        short=short,
        program="ours",
        settings={"store": store},
        said="defaults: `lease_ttl_s=10`, `balance_interval_s=3`",
    )


PLAIN = Contender(
    name="confluent-kafka, defaults",
    short="confluent",
    program="plain",
    kills=1,
    said="defaults: session 45 s, eager rebalancing (`range`)",
)
PLAIN_TUNED = replace(
    PLAIN,
    name="confluent-kafka, session 10 s",
    short="confluent 10 s",
    settings={
        "session.timeout.ms": int(SESSION_S * 1000),
        "partition.assignment.strategy": COOPERATIVE,
    },
    kills=3,
    said="`session.timeout.ms=10000`, incremental rebalancing (`cooperative-sticky`)",
)
PLAIN_NEXT = replace(
    PLAIN,
    name="confluent-kafka, new protocol",
    short="confluent new",
    settings={"group.protocol": "consumer"},
    said="`group.protocol=consumer` (KIP-848); the broker sets the session, by default to 45 s, "
    "and allows no less",
)
QUIXSTREAMS = Contender(
    name="quixstreams",
    short="quixstreams",
    program="quix",
    packages="quixstreams",
    settings={"session.timeout.ms": int(SESSION_S * 1000)},
    said="`session.timeout.ms=10000` (its default is 45 s); it allows only eager rebalancing "
    "(`range`)",
)
FASTSTREAM = Contender(
    name="faststream",
    short="faststream",
    program="fast",
    packages="faststream",
    settings={"partition.assignment.strategy": COOPERATIVE},
    said="its default session of 10 s; `cooperative-sticky` (its default is eager, `roundrobin`)",
)


def structured(folder: Path) -> Contender:
    """``folder``: for what its queries keep."""
    jars = ",".join(map(str, sorted(CONNECTOR.glob("*.jar"))))
    return Contender(
        name="Structured Streaming",
        short="Spark",
        program="structured",
        settings={"jars": jars, "folder": str(folder)},
        kills=0,
        said="`local[2]`, 2 shuffle partitions, `availableNow`, warmed up by one pass over the "
        "topic; it cannot share partitions, so aggregates only",
    )


def contenders(stores: Mapping[str, str]) -> list[Contender]:
    """``stores``: their URLs by what they are called."""
    ours = [
        leasehold(url, name, "Leasehold" if place == 0 else f"Leasehold {place + 1}")
        for place, (name, url) in enumerate(stores.items())
    ]
    return [*ours, PLAIN, PLAIN_TUNED, PLAIN_NEXT, QUIXSTREAMS, FASTSTREAM]


def set_up(contender: Contender) -> None:
    """Its virtual environment, from its file of pinned packages; again only if that changed."""
    if not contender.packages:
        return
    wanted = Path(__file__).parent / "packages" / f"{contender.packages}.txt"
    place = ENVIRONMENTS / contender.packages
    done = place / "installed.txt"
    if done.exists() and done.read_text() == wanted.read_text():
        return
    _run([sys.executable, "-m", "venv", "--clear", place])
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    _run([place / "bin" / "python", "-m", "pip", "install", *quiet, "-r", wanted])
    done.write_text(wanted.read_text())


def versions(contender: Contender) -> str:
    """Of its library and of its Kafka client."""
    if contender.program == "ours":
        return f"leasehold {version('leasehold')}, confluent-kafka {version('confluent-kafka')}"
    if contender.program == "structured":
        (connector,) = CONNECTOR.glob("spark-sql-kafka-*.jar")
        return f"pyspark {version('pyspark')}, {connector.stem}"
    if not contender.packages:
        return f"confluent-kafka {version('confluent-kafka')}"
    wanted = Path(__file__).parent / "packages" / f"{contender.packages}.txt"
    pinned = dict(line.split("==") for line in wanted.read_text().split())
    client = pinned["confluent-kafka"]
    return f"{contender.packages} {pinned[contender.packages]}, confluent-kafka {client}"


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
