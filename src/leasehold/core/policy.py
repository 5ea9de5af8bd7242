"""How often a checkpoint is written (SPEC E14)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Whatever comes first. With nothing given, only the user's own checkpoints count."""

    events: int | None = None
    seconds: float | None = None
    batches: int | None = None

    def __post_init__(self) -> None:
        for name in ("events", "seconds", "batches"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"checkpoint: {name} must be more than 0, not {value!r}")

    @property
    def manual(self) -> bool:
        return self.events is None and self.seconds is None and self.batches is None

    def due(self, events: int, seconds: float, batches: int) -> bool:
        """Whether to save, so much after the last time."""
        return (
            (self.events is not None and events >= self.events)
            or (self.batches is not None and batches >= self.batches)
            or (self.seconds is not None and events > 0 and seconds >= self.seconds)
        )


def every(
    *, events: int | None = None, seconds: float | None = None, batches: int | None = None
) -> Every:
    """A checkpoint every so many events, seconds or batches, whatever comes first."""
    if events is None and seconds is None and batches is None:
        raise ValueError("every() needs events=, seconds= or batches=; or use manual()")
    return Every(events=events, seconds=seconds, batches=batches)


def manual() -> Every:
    """No checkpoint but those that the handler writes itself."""
    return Every()
