"""What a client may ask of a new container, and what of it this endpoint has."""

from __future__ import annotations

from typing import Any, NamedTuple

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.endpoints.cosmos.sql.computed import parse_computed
from leasehold.endpoints.cosmos.throughput import Throughput
from leasehold.errors import BadInput
from leasehold.feeds.container import VERSIONS_S
from leasehold.feeds.container.documents import PATHS_MAX, TTL_S_MAX, is_ttl, join_path, parse_paths
from leasehold.feeds.effective_keys import path_parts

REFUSED = {
    "uniqueKeyPolicy": ("uniqueKeys",),
    "vectorEmbeddingPolicy": ("vectorEmbeddings",),
    "fullTextPolicy": ("fullTextPaths",),
    "clientEncryptionPolicy": ("includedPaths",),
    "materializedViewDefinition": (),
}
MINUTES_MAX = 100 * 366 * 24 * 60
"""As long as nobody waits."""
KEPT = (
    "indexingPolicy",
    "conflictResolutionPolicy",
    "geospatialConfig",
    "changeFeedPolicy",
    "computedProperties",
)


def default_properties() -> dict[str, Any]:
    return {
        "indexingPolicy": {
            "indexingMode": "consistent",
            "automatic": True,
            "includedPaths": [{"path": "/*"}],
            "excludedPaths": [{"path": '/"_etag"/?'}],
        },
        "conflictResolutionPolicy": {
            "mode": "LastWriterWins",
            "conflictResolutionPath": "/_ts",
            "conflictResolutionProcedure": "",
        },
        "geospatialConfig": {"type": "Geography"},
    }


class ContainerWish(NamedTuple):
    key_path: str
    ranges: int
    ttl_s: float | None
    versions_s: float
    properties: dict[str, Any]
    """Kept and shown; only computed properties have an effect."""

    @classmethod
    def parse(cls, body: dict[str, Any], throughput: Throughput | None) -> ContainerWish:
        for name, inner in REFUSED.items():
            value = _object(body, name)
            if value and (not inner or any(value.get(each) for each in inner)):
                raise Refusal(400, f"{name} is not supported by this endpoint.")
        parse_computed(body.get("computedProperties"))
        return cls(
            _key_path(body.get("partitionKey")),
            1 if throughput is None else throughput.ranges,
            _ttl(body.get("defaultTtl")),
            _versions(_object(body, "changeFeedPolicy")),
            _kept(body),
        )


def _object(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise Refusal(400, f"{name} is an object, not {value!r:.40}.")
    return value or {}


def _kept(body: dict[str, Any]) -> dict[str, Any]:
    kept = {name: body[name] for name in KEPT if body.get(name)}
    policy = _object(body, "indexingPolicy")
    if policy and policy.get("indexingMode", "consistent") != "none":
        kept["indexingPolicy"] = _indexing(policy)
    return kept


def _indexing(policy: dict[str, Any]) -> dict[str, Any]:
    """As Azure gives it back: kinds of index are its own choice, and etags are never indexed."""
    default = default_properties()["indexingPolicy"]
    listed = [policy.get(name) or [] for name in ("includedPaths", "excludedPaths")]
    if not all(isinstance(paths, list) for paths in listed):
        raise Refusal(400, "includedPaths and excludedPaths are arrays.")
    included, excluded = ([each for each in paths if isinstance(each, dict)] for paths in listed)
    paths = [{name: each[name] for name in each if name != "indexes"} for each in included]
    etag = [each for each in default["excludedPaths"] if each not in excluded]
    both = {"includedPaths": paths or default["includedPaths"], "excludedPaths": excluded + etag}
    return {**default, **policy, **both}


def _key_path(given: Any) -> str:
    paths = given.get("paths") if isinstance(given, dict) else None
    if not isinstance(paths, list) or not paths:
        raise Refusal(400, "A container needs a partitionKey with paths.")
    if len(paths) > PATHS_MAX:
        raise Refusal(400, f"Too many partition key paths: {PATHS_MAX} at most are possible.")
    try:
        named = tuple(tuple(path_parts(str(path))) for path in paths)
        plain = ",".join(map(join_path, named))
        if parse_paths(plain) != named:  # quotes in one name that seem to end in another
            raise BadInput(f"partition key paths {plain!r:.80}: these names cannot be written")
    except BadInput as error:
        raise Refusal(400, str(error)) from error
    return plain


def _ttl(given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not is_ttl(given):
        raise Refusal(400, f"defaultTtl is -1, or 1 to {TTL_S_MAX} seconds, not {given!r:.40}.")
    return float(given)


def _versions(given: dict[str, Any]) -> float:
    """Minutes, in which changes of all versions are kept; as long as a new container's if unset."""
    minutes = given.get("retentionDuration")
    if isinstance(minutes, bool) or not isinstance(minutes, int) or minutes <= 0:
        return VERSIONS_S
    return min(minutes, MINUTES_MAX) * 60.0
