"""What machines ask: whether this process works, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from homes.view.recent_activity import RecentActivity
from homes.web.live import Live
from homes.web.sign_in import SignIn
from leasehold import Registry


class Probes:
    def __init__(
        self, registry: Registry, activity: RecentActivity, live: Live, sign_in: SignIn
    ) -> None:
        self._registry, self._activity, self._live, self._sign_in = (
            registry,
            activity,
            live,
            sign_in,
        )
        self._homes = registry.gauge("leasehold_web_homes", "Homes known to the web process.")
        self._version = registry.gauge(
            "leasehold_web_table_version", "Version of the activity table that is known."
        )
        self._open = registry.gauge("leasehold_web_streams", "Pages that are updated live.")
        self._rejected = registry.gauge(
            "leasehold_web_rejected_readings", "Readings that were not believed.", ("reason",)
        )

    def routes(self) -> Sequence[Route]:
        return [Route("/metrics", self.metrics), Route("/healthz", self.health)]

    async def metrics(self, request: Request) -> Response:
        """For operators; a scraper gives the metrics token, or their password, as bearer token."""
        session = self._sign_in.session(request)
        if session is None or session.role != "operator":
            await self._sign_in.require_password(request)
        window = self._activity.window
        self._homes.set((), len(window))
        self._version.set((), self._activity.version)
        self._open.set((), self._live.open)
        for reason, count in list(window.rejected.items()):
            self._rejected.set((reason,), count)
        return Response(self._registry.render(), media_type=Registry.content_type)

    async def health(self, request: Request) -> Response:
        """Whether this process works; not how much it has read yet."""
        failing = bool(self._activity.failing)
        text = "the activity table cannot be read" if failing else "ok"
        return PlainTextResponse(text + "\n", 503 if failing else 200)
