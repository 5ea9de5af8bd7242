"""Numbers in the Prometheus text format, and a small server that gives them out.

The format is a page long and stable, so a client library would be more than what it is used for.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from itertools import accumulate
from math import isfinite, isnan
from socket import SHUT_RDWR
from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn
from typing import Any, Literal, Self, TypeVar

from leasehold.errors import BadInput
from leasehold.ports import Measure
from leasehold.telemetry.health import Health, all_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SCRAPES_MAX, SCRAPES_PER_ADDRESS = 32, 8
"""At a time."""
SCRAPE_S = 10.0
"""For a whole request, its answer included."""
HEAD_BYTES_MAX = 16 << 10
SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)
"""Bounds of what is observed."""
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
        self._reads: dict[Hashable, Callable[[], Mapping[Labels, float]]] = {}

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

    def watch(self, key: Hashable, read: Callable[[], Mapping[Labels, float]]) -> None:
        """What somebody else keeps, read when it is asked for."""
        with self._lock:
            self._reads[key] = read

    def lines(self) -> Iterator[Line]:
        found = dict(self._values)
        for read in self._reads.values():
            for labels, value in read().items():
                before = found.get(labels, 0) if self.kind == "counter" else 0
                found[labels] = before + value
        for labels, value in sorted(found.items()):
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

    def begin(self, labels: Labels) -> None:
        with self._lock:
            self._counts.setdefault(labels, [0] * (len(self._bounds) + 1))
            self._values.setdefault(labels, 0)

    def observe(self, labels: Labels, value: float) -> None:
        if labels not in self._counts:
            self.begin(labels)
        with self._lock:
            self._counts[labels][bisect_left(self._bounds, value)] += 1
            self._values[labels] += value

    def lines(self) -> Iterator[Line]:
        for labels, counts in sorted(self._counts.items()):
            ends = (*map(_number, self._bounds), "+Inf")
            for end, count in zip(ends, accumulate(counts), strict=True):
                yield "_bucket", (*self.labels, "le"), (*labels, end), count
            yield "_sum", self.labels, labels, self._values[labels]
            yield "_count", self.labels, labels, sum(counts)


F = TypeVar("F", bound=Family)


class Registry:
    """The families of one process. Asked for a name twice, it gives the same family.

    It is a ``Telemetry``: what is reported to it becomes families, named as Prometheus wants it.
    """

    content_type = CONTENT_TYPE
    """Of what ``render`` gives, for HTTP servers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: dict[str, Family] = {}
        self._measures: dict[str, Family] = {}
        self._probes: dict[Hashable, Callable[[], Health | None]] = {}

    def probe(self, key: Hashable, read: Callable[[], Health | None]) -> None:
        """Whose health ``/healthz`` and ``/readyz`` are about. None: it is over, and not missed."""
        with self._lock:
            self._probes[key] = read

    def health(self) -> Health:
        """Of all processors that report here."""
        with self._lock:
            probes = list(self._probes.values())
        return all_of(health for probe in probes if (health := probe()) is not None)

    def declare(self, measures: Sequence[Measure]) -> None:
        for measure in measures:
            self._family(measure)

    def count(self, measure: Measure, attributes: Labels, amount: int = 1) -> None:
        self._family(measure).add(attributes, amount)

    def level(self, measure: Measure, attributes: Labels, value: float | None) -> None:
        family = self._family(measure)
        if value is None:
            family.drop(attributes)
        else:
            family.set(attributes, value)

    def observe(self, measure: Measure, attributes: Labels, *values: float) -> None:
        family = self._family(measure)
        assert isinstance(family, Histogram)
        if not values:
            family.begin(attributes)
        for value in values:
            family.observe(attributes, value)

    def watch(
        self, measure: Measure, key: Hashable, read: Callable[[], Mapping[Labels, float]]
    ) -> None:
        self._family(measure).watch(key, read)

    def _family(self, measure: Measure) -> Family:
        known = self._measures.get(measure.name)
        if known is None:
            known = self._measures[measure.name] = self._made(measure)
        return known

    def _made(self, measure: Measure) -> Family:
        name = f"leasehold_{measure.name}{'_seconds' if measure.unit == 's' else ''}"
        match measure.kind:
            case "count":
                return self.counter(f"{name}_total", measure.about, measure.attributes)
            case "level":
                return self.gauge(name, measure.about, measure.attributes)
            case "observation":
                return self.histogram(name, measure.about, measure.attributes, SECONDS)

    def counter(self, name: str, about: str, labels: Sequence[str] = ()) -> Family:
        return self._known(Family("counter", name, about, labels, self._lock))

    def gauge(self, name: str, about: str, labels: Sequence[str] = ()) -> Family:
        return self._known(Family("gauge", name, about, labels, self._lock))

    def histogram(
        self, name: str, about: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> Histogram:
        return self._known(Histogram(name, about, labels, self._lock, bounds))

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
    """Serve ``/metrics`` in a background thread, and ``/healthz`` and ``/readyz`` about the
    processors that report to the registry: 200 if all are alive, or ready; else 503. Only this
    machine can ask, unless ``host`` says otherwise: the numbers name instances and partitions, and
    there is no password."""
    return MetricsServer(registry, port, host)


class _Server(ThreadingMixIn, TCPServer):
    """One request a connection, each in a thread: so there are few, none lasts, and one address
    cannot have them all. Where there is no room for another, the one that has been silent longest
    gives way: a scraper on this machine shares its address with every local user."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 16
    registry: Registry

    def __init__(self, *given: Any) -> None:
        self._open: dict[Any, tuple[str, float]] = {}
        self._silent: dict[Any, str] = {}
        """Those that have not asked yet, and their addresses; the oldest first."""
        self._changing = threading.Lock()
        super().__init__(*given)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        mine = client_address[0]
        with self._changing:
            if sum(address == mine for address, _ in self._open.values()) >= SCRAPES_PER_ADDRESS:
                if not self._make_room(lambda address: address == mine):
                    return False
            elif len(self._open) >= SCRAPES_MAX and not self._make_room(lambda address: True):
                return False
            self._open[request] = mine, time.monotonic() + SCRAPE_S
            self._silent[request] = mine
            return True

    def answers(self, request: Any) -> None:
        """It has asked."""
        with self._changing:
            self._silent.pop(request, None)

    def _make_room(self, of: Callable[[str], bool]) -> bool:
        silent = next((each for each, address in self._silent.items() if of(address)), None)
        if silent is None:
            return False
        del self._open[silent], self._silent[silent]
        with suppress(OSError):
            silent.shutdown(SHUT_RDWR)
        return True

    def service_actions(self) -> None:
        """Twice a second. Not a timeout of the socket: that begins again with every byte."""
        now = time.monotonic()
        with self._changing:
            late = [request for request, (_, ends_at) in self._open.items() if now >= ends_at]
        for request in late:
            with suppress(OSError):
                request.shutdown(SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
            self._silent.pop(request, None)
        super().shutdown_request(request)


class _Handler(BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):  # it went away, or took too long
            head = self._head()
            if head is not None:
                assert isinstance(self.server, _Server)
                self.server.answers(self.request)
                self.request.sendall(self._answer(head))

    def _head(self) -> bytes | None:
        """None: it never came."""
        head = b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head and len(head) <= HEAD_BYTES_MAX:
            more = self.request.recv(HEAD_BYTES_MAX)
            if not more:
                return None
            head += more
        return head

    def _answer(self, head: bytes) -> bytes:
        server = self.server
        assert isinstance(server, _Server)
        method, _, rest = head.partition(b"\n")[0].partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        status, kind = 200, "text/plain; charset=utf-8"
        body = b"only GET /metrics, /healthz and /readyz are here\n"
        if len(head) > HEAD_BYTES_MAX:
            status = 431
        elif method not in (b"GET", b"HEAD"):
            status = 405
        elif path in (b"/", b"/metrics"):
            kind, body = CONTENT_TYPE, server.registry.render().encode(errors="replace")
        elif path in (b"/healthz", b"/readyz"):
            health = server.registry.health()
            well = health.alive if path == b"/healthz" else health.ready
            status = 200 if well else 503
            body = b"ok\n" if well else f"{health.why}\n".encode(errors="replace")
        else:
            status = 404
        lines = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
        )
        return "\r\n".join((*lines, "", "")).encode() + (b"" if method == b"HEAD" else body)
