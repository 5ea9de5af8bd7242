"""Who asks, behind a proxy that speaks TLS for us, and under which address the page is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from homes.web.limits import network_of
from leasehold import BadInput

LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1/128")
FORWARDED = re.compile(r'(?:for=)?"?(?:\[([^]]+)\]|([^:"]+)|([0-9a-f:.]+))(?::\w+)?"?', re.I)
"""An address as proxies write it: bare, with a port, in brackets, quoted."""


class Proxies:
    """``networks``: beside loopback, those of proxies that may say for whom they ask."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        try:
            self._named = [ip_network(each, strict=False) for each in networks]
        except ValueError as error:
            raise BadInput(
                f"a trusted proxy is an address or a network, such as 10.0.0.0/8: {error}"
            ) from error
        self._peers = [*map(ip_network, LOOPBACK_NETWORKS), *self._named]

    def trusted(self, peer: str) -> bool:
        address = parse_address(peer)
        return address is not None and any(address in network for network in self._peers)

    def client(self, peer: str, forwarded_for: Sequence[str]) -> str:
        """The network of the client: the last address that is no proxy's. What comes before it
        the client has made up; loopback is a proxy's only if it is the peer itself."""
        seen = peer
        if self.trusted(peer):
            for text in reversed(",".join(forwarded_for).split(",")):
                address = parse_address(text)
                if address is None:  # nothing that could tell two clients apart
                    break
                seen = str(address)
                if not any(address in network for network in self._named):
                    break
        return network_of(seen)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    found = FORWARDED.fullmatch(text.strip())
    if found is None:
        return None
    try:
        address = ip_address(next(filter(None, found.groups())).partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicUrl:
    """The address that browsers show."""

    origin: str
    host: str
    secure: bool

    @classmethod
    def parse(cls, text: str) -> PublicUrl:
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https") or parts.path.strip("/"):
            raise BadInput(f"--public-url is {text!r}; give https://HOST, without a path")
        if parts.username is not None or parts.query or parts.fragment:
            raise BadInput(f"--public-url is {text!r}; give https://HOST and nothing more")
        secure = parts.scheme == "https"
        name = f"[{host}]" if ":" in host else host
        shown = "" if port in (None, 443 if secure else 80) else f":{port}"
        return cls(origin=f"{parts.scheme}://{name}{shown}", host=host, secure=secure)
