"""Where batches are written exactly once: the sink that a URL names, and what sinks have in common.

``open_sink("data/activity")`` is a Delta table; other packages may bring other kinds.
"""

from __future__ import annotations

import os
from typing import Any, cast

from leasehold.ports import Sink
from leasehold.schemes import Schemes
from leasehold.sinks.fence import UNKNOWN, Fence, still_held, under_way, writer_of
from leasehold.sinks.history import History

__all__ = ["UNKNOWN", "Fence", "History", "open_sink", "still_held", "under_way", "writer_of"]

DELTA = "leasehold.spark.delta.sink:DeltaSink"
STORAGE = (
    *("file", "az", "azure", "abfs", "abfss", "adl", "s3", "s3a", "gs", "gcs"),
    *("memory", "hdfs", "lakefs", "uc"),
)
"""Whose URLs name a Delta table, as the ``deltalake`` package knows them."""
SINKS = Schemes(
    kind="sink",
    group="leasehold.sinks",
    own={"": DELTA} | dict.fromkeys(STORAGE, DELTA),
    examples=(
        "data/activity (a Delta table in a folder)",
        "az://container/activity (a Delta table in blob storage; also s3://, gs://, abfss:// …)",
    ),
)


def open_sink(url: str | os.PathLike[str], **settings: Any) -> Sink:
    """The sink that a URL names. Settings are its own, such as ``key``: the column of the rows that
    names the partition. Secrets are taken from the environment."""
    text = os.fspath(url)
    scheme, is_url, _ = text.partition("://")
    return cast(Sink, SINKS.open(scheme.lower() if is_url else "", text, settings))
