"""What a client may ask of a new container, and what of it this endpoint has."""

from __future__ import annotations

from typing import Any, NamedTuple

from leasehold.endpoints.cosmos.refusals import Refusal
from leasehold.errors import BadInput
from leasehold.feeds.container import VERSIONS_S
from leasehold.feeds.container.documents import parse_paths
from leasehold.feeds.effective_keys import path_parts

RANGE_THROUGHPUT = 6_000
"""Request units per second that a range of a new container is made for, as in Azure."""
THROUGHPUT_MAX = 100_000
REFUSED = {
    "uniqueKeyPolicy": ("uniqueKeys",),
    "vectorEmbeddingPolicy": ("vectorEmbeddings",),
    "fullTextPolicy": ("fullTextPaths",),
    "computedProperties": (),
    "clientEncryptionPolicy": ("includedPaths",),
    "materializedViewDefinition": (),
}
KEPT = ("indexingPolicy", "conflictResolutionPolicy", "geospatialConfig", "changeFeedPolicy")


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
    """Kept and shown, without effect."""

    @classmethod
    def parse(cls, body: dict[str, Any], throughput: int | None) -> ContainerWish:
        for name, inner in REFUSED.items():
            value = body.get(name)
            if value and (not inner or any(value.get(each) for each in inner)):
                raise Refusal(400, f"{name} is not supported by this endpoint.")
        return cls(
            _key_path(body.get("partitionKey")),
            -(-(throughput or 1) // RANGE_THROUGHPUT),
            _ttl(body.get("defaultTtl")),
            _versions(body.get("changeFeedPolicy")),
            _kept(body),
        )


def _kept(body: dict[str, Any]) -> dict[str, Any]:
    kept = {name: body[name] for name in KEPT if body.get(name)}
    policy = kept.get("indexingPolicy")
    if isinstance(policy, dict) and policy.get("indexingMode", "consistent") != "none":
        kept["indexingPolicy"] = default_properties()["indexingPolicy"] | policy
    return kept


def throughput_of(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 100 <= int(text[:9]) <= THROUGHPUT_MAX:
        raise Refusal(400, f"The throughput {text:.20} is not between 100 and {THROUGHPUT_MAX}.")
    return int(text)


def _key_path(given: Any) -> str:
    paths = given.get("paths") if isinstance(given, dict) else None
    if not isinstance(paths, list) or not paths:
        raise Refusal(400, "A container needs a partitionKey with paths.")
    parts = [path_parts(str(path)) for path in paths]
    if any(mark in part for each in parts for part in each for mark in "/,"):
        raise Refusal(
            400, "Names with slashes or commas in a partition key's path are no use here."
        )
    plain = ["/" + "/".join(each) for each in parts]
    try:
        parse_paths(",".join(plain))
    except BadInput as error:
        raise Refusal(400, str(error)) from error
    return ",".join(plain)


def _ttl(given: Any) -> float | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or not (given == -1 or given > 0):
        raise Refusal(400, f"defaultTtl is -1 or a number of seconds, not {given!r:.40}.")
    return float(given)


def _versions(given: Any) -> float:
    """Minutes, in which changes of all versions are kept; as long as a new container's if unset."""
    minutes = given.get("retentionDuration") if isinstance(given, dict) else None
    if isinstance(minutes, bool) or not isinstance(minutes, int) or minutes <= 0:
        return VERSIONS_S
    return minutes * 60.0
