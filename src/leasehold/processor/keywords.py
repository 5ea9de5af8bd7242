"""The keywords that every kind of processor takes, as types for those that pass them on.

``Processor`` names them one by one, with their defaults; its subclasses take them by ``Unpack``, so
that editors and type checkers know them there, too. What they mean is said in ``settings`` and at
``Processor``; a test compares the three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from leasehold.core.balance import Assign
from leasehold.ports import Clock, DeadLetters, Telemetry
from leasehold.settings import Every, OnPositionGone, Retry


class CommonKeywords(TypedDict, total=False):
    checkpoint: Every | None
    retry: Retry | None
    lease_ttl_s: float
    balance_interval_s: float
    shed_timeout_s: float
    request_timeout_s: float
    drain_timeout_s: float
    max_bytes: int
    read_timeout_s: float
    retry_s: float
    retry_max_s: float
    handler_timeout_s: float | None
    on_position_gone: OnPositionGone
    assign: Assign
    clock: Clock | None
    telemetry: Telemetry | None


class ChangeFeedKeywords(CommonKeywords, total=False):
    """Of ``Processor``, for a ``ChangeFeedProcessor``."""

    dead_letters: DeadLetters | None
    read_ahead: bool


class SparkKeywords(CommonKeywords, total=False):
    """Of ``Processor``, for a ``SparkProcessor``."""

    on_error: Callable[..., Any] | None
    on_partition_open: Callable[..., Any] | None
    on_partition_close: Callable[..., Any] | None
    start: Any
    instance: str | None
    mirror_offsets: bool
