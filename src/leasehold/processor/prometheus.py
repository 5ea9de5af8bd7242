"""Numbers in the Prometheus text format, and a small server that gives them out.

The format is a page long and stable, so a client library would be more than what it is used for.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from itertools import accumulate
from math import isfinite, isnan
from socketserver import TCPServer, ThreadingMixIn
from typing import Literal, Self, TypeVar

from leasehold.errors import BadInput

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]
"""Label values, in the order of the family's label names."""
Line = tuple[str, Sequence[str], Sequence[str], float]
"""What follows the name, label names, label values, value."""


class Family:
    """All series of one name. Made by a ``Registry``, whose lock it shares."""

    def __init__(
        self,
        kind: Literal["counter", "gauge", "histogram"],
        name: str,
        about: str,
        labels: Sequence[str],
        lock: threading.Lock,
    ) -> None:
        self.kind, self.name, self.about, self.labels = kind, name, about, tuple(labels)
        self._lock = lock
        self._values: dict[Labels, float] = {}

    def add(self, labels: Labels, amount: float = 1) -> None:
        with self._lock:
            self._values[labels] = self._values.get(labels, 0) + amount

    def set(self, labels: Labels, value: float) -> None:
        with self._lock:
            self._values[labels] = value

    def drop(self, labels: Labels) -> None:
        """A series that is no longer true must end, not stay at its last value."""
        with self._lock:
            self._values.pop(labels, None)

    def lines(self) -> Iterator[Line]:
        for labels, value in sorted(self._values.items()):
            yield "", self.labels, labels, value


class Histogram(Family):
    def __init__(
        self,
        name: str,
        about: str,
        labels: Sequence[str],
        lock: threading.Lock,
        bounds: Sequence[float],
    ) -> None:
        super().__init__("histogram", name, about, labels, lock)
        self._bounds = tuple(sorted(bounds))
        self._counts: dict[Labels, list[int]] = {}

    def observe(self, labels: Labels, value: float) -> None:
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
            counts[bisect_left(self._bounds, value)] += 1
            self._values[labels] = self._values.get(labels, 0) + value

    def lines(self) -> Iterator[Line]:
        for labels, counts in sorted(self._counts.items()):
            ends = (*map(_number, self._bounds), "+Inf")
            for end, count in zip(ends, accumulate(counts), strict=True):
                yield "_bucket", (*self.labels, "le"), (*labels, end), count
            yield "_sum", self.labels, labels, self._values[labels]
            yield "_count", self.labels, labels, sum(counts)


class Counts(Family):
    """Counters that somebody else keeps, by key, added up when they are asked for."""

    def __init__(self, name: str, about: str, label: str, lock: threading.Lock) -> None:
        super().__init__("counter", name, about, (label,), lock)
        self._sources: list[Mapping[str, int]] = []

    def watch(self, source: Mapping[str, int]) -> None:
        """Once is enough: a store that two processors share is counted once."""
        with self._lock:
            if not any(known is source for known in self._sources):
                self._sources.append(source)

    def lines(self) -> Iterator[Line]:
        total = Counter[str]()
        for source in self._sources:
            total.update(dict(source))  # copied at once, for its keeper goes on counting
        for key, count in sorted(total.items()):
            yield "", self.labels, (key,), count


F = TypeVar("F", bound=Family)


class Registry:
    """The families of one process. Asked for a name twice, it gives the same family."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, Family] = {}

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Family:
        return self._known(Family("counter", name, about, labels, self._lock))

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> Family:
        return self._known(Family("gauge", name, about, labels, self._lock))

    def histogram(
        self, name: str, about: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> Histogram:
        return self._known(Histogram(name, about, labels, self._lock, bounds))

    def counts(self, name: str, about: str, label: str) -> Counts:
        return self._known(Counts(name, about, label, self._lock))

    def render(self) -> str:
        with self._lock:
            return "".join(_text(family) for family in self._families.values())

    def _known(self, family: F) -> F:
        with self._lock:
            known = self._families.setdefault(family.name, family)
        if type(known) is type(family) and known.kind == family.kind:
            return known
        raise BadInput(f"the metric {family.name} exists as a {known.kind} already")


def _text(family: Family) -> str:
    about = family.about.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {family.name} {about}", f"# TYPE {family.name} {family.kind}"]
    for suffix, names, values, value in family.lines():
        labels = ",".join(f'{n}="{_quoted(v)}"' for n, v in zip(names, values, strict=True))
        place = f"{{{labels}}}" if labels else ""
        lines.append(f"{family.name}{suffix}{place} {_number(value)}")
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


class MetricsServer:
    """Gives a registry out over HTTP until it is closed."""

    def __init__(self, registry: Registry, port: int, host: str) -> None:
        try:
            self._server = _Server((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise BadInput(
                f"metrics cannot be served on {host}, port {port}: {error}. Choose another port; "
                "0 takes any that is free"
            ) from error
        self._server.registry = registry
        self.host, self.port = self._server.server_address[:2]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name=f"metrics-{self.port}", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{self.host!s}:{self.port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_metrics(registry: Registry, port: int, *, host: str = "127.0.0.1") -> MetricsServer:
    """Serve ``/metrics`` in a background thread. Only this machine can ask, unless ``host`` says
    otherwise: the numbers name instances and partitions, and there is no password."""
    return MetricsServer(registry, port, host)


class _Server(ThreadingMixIn, TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    registry: Registry


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        if self.path.partition("?")[0] not in ("/", "/metrics"):
            self.send_error(404, "only /metrics is here")
            return
        body = server.registry.render().encode(errors="replace")
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A line for every scrape would bury what matters."""
