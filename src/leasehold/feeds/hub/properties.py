"""What a hub says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from leasehold.core.lag import Extent
from leasehold.feeds.arrow_events import to_datetime
from leasehold.feeds.hub.file import HubSettings, State


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProperties:
    partition: str
    first_sequence: int
    """The oldest event kept, or the next one to come."""
    next_sequence: int
    last_offset: str
    last_enqueued_at: datetime | None
    body_bytes: int
    """Of the events kept, as sent."""
    stored_bytes: int
    """Of the same events, compressed."""

    @property
    def last_sequence(self) -> int:
        """-1 before the first event."""
        return self.next_sequence - 1

    @property
    def events(self) -> int:
        return self.next_sequence - self.first_sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class HubProperties:
    namespace: str
    name: str
    identity: str
    """Made at random with the hub: another hub at the same path has another one."""
    created_at: datetime
    batch_bytes_max: int
    retention_s: float | None
    retention_bytes: int | None
    partitions: tuple[PartitionProperties, ...]
    file_bytes: int

    @property
    def partition_ids(self) -> tuple[str, ...]:
        return tuple(partition.partition for partition in self.partitions)

    @property
    def events(self) -> int:
        return sum(partition.events for partition in self.partitions)

    @property
    def body_bytes(self) -> int:
        return sum(partition.body_bytes for partition in self.partitions)

    @property
    def stored_bytes(self) -> int:
        return sum(partition.stored_bytes for partition in self.partitions)


def extent(state: State) -> Extent:
    us = state.last_enqueued_us
    return Extent(
        partition=str(state.partition),
        first=state.first_sequence,
        end=state.next_sequence,
        last_enqueued_at=None if us is None else us / 1e6,
    )


def partition_properties(state: State) -> PartitionProperties:
    return PartitionProperties(
        partition=str(state.partition),
        first_sequence=state.first_sequence,
        next_sequence=state.next_sequence,
        last_offset=str(state.last_offset),
        last_enqueued_at=(
            None if state.last_enqueued_us is None else to_datetime(state.last_enqueued_us)
        ),
        body_bytes=state.body_bytes,
        stored_bytes=state.stored_bytes,
    )


def hub_properties(settings: HubSettings, states: list[State], file_bytes: int) -> HubProperties:
    return HubProperties(
        namespace=settings.namespace,
        name=settings.name,
        identity=settings.identity,
        created_at=to_datetime(settings.created_us),
        batch_bytes_max=settings.batch_bytes_max,
        retention_s=settings.retention_s,
        retention_bytes=settings.retention_bytes,
        partitions=tuple(partition_properties(state) for state in states),
        file_bytes=file_bytes,
    )
