"""How much one server takes on: connections, and how long a client may take for each step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from ipaddress import IPv6Address, IPv6Network
from math import isfinite
from typing import Protocol

from leasehold import BadInput

try:
    import resource
except ImportError:  # Windows: sockets are not counted as descriptors there
    resource = None  # type: ignore[assignment]

CONNECTIONS = 4096
RESERVE = 384
"""Descriptors for our own files, and for connections that are being refused."""
SOFT_WANTED = 8192
ALL = ""


def connections_possible() -> int:
    """What the limit on descriptors leaves."""
    if resource is None:
        return CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return max(1, soft - min(RESERVE, soft // 2))


def raise_descriptor_limit() -> None:
    """Many systems give a process 1,024 descriptors and let it have more. For whole programs: a
    library must not change its host's limits."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SOFT_WANTED if hard == resource.RLIM_INFINITY else min(SOFT_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    head_timeout_s: float = 10.0
    """From the connection, or the first byte, to the end of a request's head."""
    body_timeout_s: float = 20.0
    idle_timeout_s: float = 30.0
    """Between two requests of a connection."""
    write_timeout_s: float = 30.0
    """For a client to take each 256 kB of its answer."""
    connections_max: int = field(
        default_factory=lambda: min(CONNECTIONS, connections_possible()),
    )
    connections_per_address: int = 128
    """At most, and no more than half of all; trusted proxies are exempt."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (isfinite(value) and value > 0):
                raise BadInput(f"{each.name} is {value}; give a number above 0")
        possible = connections_possible()
        if self.connections_max > possible:
            raise BadInput(
                f"connections_max is {self.connections_max}, but the limit on open files leaves "
                f"{possible}; give less, or raise the limit with: ulimit -n"
            )

    @property
    def streams_max(self) -> int:
        """Pages of homes that are updated live: each keeps a connection, and requests need some,
        too."""
        return max(1, self.connections_max // 2)


class Connection(Protocol):
    def give_way(self) -> None:
        """End now, for another to be let in."""


class ClientConnections:
    """Those that are open, by the network they come from. Where there is no room for another, the
    one that has been silent longest is closed. Otherwise a client that opens many and stays silent
    would lock out all others, and on loopback all local users have the same address."""

    def __init__(self, limits: ServerLimits, exempt: Callable[[str], bool]) -> None:
        self._limits, self._exempt = limits, exempt
        self._open: dict[Connection, str] = {}
        self._by_network: Counter[str] = Counter()
        self._waiting: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        """Those without a whole request, longest first: by network, and all under ``ALL``."""

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: Connection, address: str) -> bool:
        """False: all are being answered."""
        network, limits = network_of(address), self._limits
        most = min(limits.connections_per_address, max(1, limits.connections_max // 2))
        if self._by_network[network] >= most and not self._exempt(address):
            if not self._make_room(network):
                return False
        elif len(self._open) >= limits.connections_max and not self._make_room(ALL):
            return False
        self._open[connection] = network
        self._by_network[network] += 1
        self.waits(connection)
        return True

    def waits(self, connection: Connection) -> None:
        """For a request, from now on."""
        if connection in self._open:
            self.answers(connection)
            for key in (ALL, self._open[connection]):
                self._waiting[key][connection] = None

    def answers(self, connection: Connection) -> None:
        """It has sent a whole request, and gets its answer."""
        for key in (ALL, self._open.get(connection, ALL)):
            self._waiting[key].pop(connection, None)
            if not self._waiting[key]:
                del self._waiting[key]

    def _make_room(self, key: str) -> bool:
        silent = next(iter(self._waiting.get(key, ())), None)
        if silent is None:
            return False
        self.leave(silent)
        silent.give_way()
        return True

    def leave(self, connection: Connection) -> None:
        self.answers(connection)
        network = self._open.pop(connection, None)
        if network is None:  # it was not admitted, or had to give way
            return
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]


def network_of(address: str) -> str:
    """A client with one IPv6 address has the 64 bits below it, too."""
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), 64), strict=False))
