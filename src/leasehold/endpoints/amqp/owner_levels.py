"""Owner levels (epochs): which receivers of a group may read a partition side by side."""

from __future__ import annotations

from typing import Protocol

from leasehold.endpoints.amqp.errors import RESOURCE_LIMIT, STOLEN, LinkFailed

RECEIVERS_MAX = 5
"""Without an owner level, per group and partition, as in Event Hubs."""


class Leveled(Protocol):
    owner_level: int | None

    def fail(self, error: LinkFailed) -> None:
        """Detach it, and say why."""


class OwnerLevels:
    """The receivers there are now, by group and partition."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], list[Leveled]] = {}

    def enter(self, group: str, partition: str, new: Leveled) -> None:
        """Let a receiver in, and cut off those that it outranks. Raises if it is outranked."""
        place = (group.lower(), partition)
        others = self._held.get(place, [])
        levels = [other.owner_level for other in others if other.owner_level is not None]
        highest = max(levels, default=None)
        if highest is not None and (new.owner_level is None or new.owner_level < highest):
            mine = "no epoch" if new.owner_level is None else f"epoch {new.owner_level}"
            raise LinkFailed(
                STOLEN,
                f"a receiver with epoch {highest} exists for partition {partition} in the group "
                f"{group}; one with {mine} cannot be created",
            )
        if new.owner_level is None:
            if len(others) >= RECEIVERS_MAX:
                raise LinkFailed(
                    RESOURCE_LIMIT,
                    f"partition {partition} has {RECEIVERS_MAX} receivers in the group {group}, "
                    "which is as many as there may be without an epoch",
                )
        else:
            for other in others.copy():
                other.fail(
                    LinkFailed(
                        STOLEN,
                        f"a new receiver with epoch {new.owner_level} was created for partition "
                        f"{partition} in the group {group}, so this one with epoch "
                        f"{other.owner_level} is disconnected",
                    )
                )
                self.leave(group, partition, other)
        self._held.setdefault(place, []).append(new)

    def leave(self, group: str, partition: str, receiver: Leveled) -> None:
        place = (group.lower(), partition)
        others = self._held.get(place, [])
        if receiver in others:
            others.remove(receiver)
        if not others:
            self._held.pop(place, None)
