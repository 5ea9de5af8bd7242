"""The endpoint: an account of embedded containers over Cosmos DB's REST protocol."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from leasehold.endpoints.cosmos.account import Account
from leasehold.endpoints.cosmos.http import HttpServer, Reply, Request
from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.replies import refused, reply
from leasehold.endpoints.cosmos.routes import Routes
from leasehold.endpoints.cosmos.signature import Signatures
from leasehold.errors import BadInput, FeedUnavailable
from leasehold.settings import ENDPOINT_PORT

log = logging.getLogger("leasehold")
THREADS = 8
START_S = 30.0


class CosmosEndpoint:
    """Serves containers to clients of Cosmos DB. For development and tests: it listens on loopback
    unless told otherwise.

    ``files`` are containers, each in the database that its namespace names; ``folder`` is where
    clients may create databases and containers of their own. With ``request_units_s``, requests
    beyond so many request units per second are answered with 429, as in Azure.
    """

    def __init__(
        self,
        files: Sequence[str | Path] = (),
        *,
        folder: str | Path | None = None,
        key: str,
        host: str = "127.0.0.1",
        port: int = ENDPOINT_PORT,
        tls: ssl.SSLContext | None = None,
        request_units_s: float | None = None,
    ) -> None:
        if not files and folder is None:
            raise BadInput("give the file of a container, or a folder for clients to create them")
        self.account = Account(
            [Path(file) for file in files], None if folder is None else Path(folder)
        )
        self._routes = Routes(self.account, Signatures(key), "leasehold")
        self._threads = ThreadPoolExecutor(THREADS, "cosmos-endpoint")
        self._http = HttpServer(self._answer, refused)
        self._host, self._tls = host, tls
        self._budget = None if request_units_s is None else RequestUnits(request_units_s)
        self.port = port
        self.requests = 0
        self.throttled = 0
        self.charged = 0.0
        """Request units, for all requests so far."""

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self.port}/"

    async def start(self) -> None:
        try:
            self.port = await self._http.start(self._host, self.port, self._tls)
        except OSError as error:
            raise BadInput(
                f"port {self.port} of {self._host} cannot be served: {error.strerror or error}; "
                "choose another one with --port"
            ) from error

    async def close(self) -> None:
        await self._http.close()
        self._threads.shutdown(wait=True)
        self.account.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _answer(self, request: Request) -> Reply:
        self.requests += 1
        if self._budget is not None and (wait_ms := self._budget.wait_ms()):
            self.throttled += 1
            headers = {"x-ms-retry-after-ms": str(wait_ms), "x-ms-substatus": "3200"}
            return reply(429, {"code": "429", "message": "Request rate is large."}, headers, 0)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, self._safely, request)
        charge = float(answer.headers.get("x-ms-request-charge", 0))
        self.charged += charge
        if self._budget is not None:
            self._budget.spend(charge)
        return answer

    def _safely(self, request: Request) -> Reply:
        try:
            return self._routes.answer(request, self._address(request))
        except Refusal as refusal:
            return refused(refusal)
        except UnicodeDecodeError:
            return refused(Refusal(400, "The path is not UTF-8."))
        except BadInput as error:
            return refused(Refusal(400, str(error)))
        except FeedUnavailable as error:
            return refused(Refusal(503, str(error)))
        except RecursionError:
            return refused(Refusal(400, "The query has too many terms."))
        except Exception:
            log.exception("the endpoint could not answer %s", request.method)
            return reply(500, {"code": "InternalServerError", "message": "See the server's log."})

    def _address(self, request: Request) -> str:
        """As the client calls it, so that it goes on with a name that it can reach."""
        host = request.headers.get("host", "")
        fits = host and len(host) < 300 and all(c.isalnum() or c in ".-:[]_" for c in host)
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{host}/" if fits else self.url


class RequestUnits:
    """What may still be spent in this second."""

    def __init__(self, per_s: float) -> None:
        self._per_s = per_s
        self._left = per_s
        self._at = time.monotonic()

    def wait_ms(self) -> int:
        now = time.monotonic()
        self._left = min(self._per_s, self._left + (now - self._at) * self._per_s)
        self._at = now
        return 0 if self._left > 0 else max(1, int(-self._left / self._per_s * 1000) + 1)

    def spend(self, units: float) -> None:
        self._left -= units


class EndpointThread:
    """An endpoint on a loop of its own, for tests and notebooks: to be used in ``with``."""

    def __init__(self, endpoint: CosmosEndpoint) -> None:
        self.endpoint = endpoint
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="cosmos-endpoint", daemon=True)

    def __enter__(self) -> CosmosEndpoint:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.endpoint.start(), self._loop).result(START_S)
        return self.endpoint

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.endpoint.close(), self._loop).result(START_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()
