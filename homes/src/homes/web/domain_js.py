"""What the page must know of the domain, as a module of its own: said once, in ``domain``."""

from __future__ import annotations

import json
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from homes.domain.kinds import SENSOR_KINDS
from homes.domain.thresholds import SILENT_AFTER_S


def domain_module() -> str:
    kinds = {kind.name: asdict(kind) for kind in SENSOR_KINDS}
    exported = {"KINDS": kinds, "SILENT_AFTER_S": SILENT_AFTER_S}
    return "".join(
        f"export const {name} = {json.dumps(what)};\n" for name, what in exported.items()
    )


async def _serve(request: Request) -> Response:
    return Response(domain_module(), media_type="text/javascript")


DOMAIN_ROUTE = Route("/static/domain.js", _serve)
"""To stand before the files of ``/static``."""
