"""The web application: *My home* for residents, *Operations* for operators."""

from leasehold.errors import MissingExtra

try:
    import httptools as _httptools  # noqa: F401
    import starlette as _starlette  # noqa: F401
    import uvicorn as _uvicorn  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        f"{error.name} is not installed; it comes with: pip install 'leasehold[web]'"
    ) from error

from leasehold.homes.web.app import make_app
from leasehold.homes.web.fleet import Fleet, FleetInstance, FleetNews
from leasehold.homes.web.opened import open_web
from leasehold.homes.web.secrets import Secrets
from leasehold.homes.web.server import WebServer

__all__ = [
    "Fleet",
    "FleetInstance",
    "FleetNews",
    "Secrets",
    "WebServer",
    "make_app",
    "open_web",
]
