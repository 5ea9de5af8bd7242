"""One partition's life at one instance: events in, the next action out.

    OPENING → READING → HANDLING → SAVING → READING …      WAITING interrupts any of them
                 └→ SPLITTING (the partition ended) ─┐
    any phase ─ let go, lost, stopped ──→ CLOSING ───┴→ CLOSED

The shell carries out exactly one action at a time and reports back what became of it. ``LetGo`` and
``Lost`` may come at any moment: work in hand is finished first, a pause or a read is cut short.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Phase(Enum):
    OPENING = "opening"
    READING = "reading"
    HANDLING = "handling"
    SAVING = "saving"
    SPLITTING = "splitting"
    WAITING = "waiting"
    CLOSING = "closing"
    CLOSED = "closed"


class Reason(Enum):
    """Why a partition closes."""

    SHUTDOWN = "shutdown"
    BALANCED = "balanced"
    LOST = "lost"
    SPLIT = "split"
    HUNG = "hung"
    """Its handler or its reads did not come back in time; let others try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    phase: Phase = Phase.OPENING
    resume: Phase = Phase.OPENING
    """While waiting: what to go on with."""
    unsaved: bool = False
    """Handled something that no checkpoint covers yet."""
    ending: Reason | None = None


# What happened.


@dataclass(frozen=True, slots=True)
class Done:
    """The action succeeded (opened, handled, saved, split, closed)."""


@dataclass(frozen=True, slots=True)
class Handled:
    save: bool
    """Whether a checkpoint is due."""
    unsaved: bool = True
    """Whether there is anything to save at all, should it end here."""


@dataclass(frozen=True, slots=True)
class Read:
    ended: bool = False
    """True: nothing more will ever come, the partition was split."""


@dataclass(frozen=True, slots=True)
class Again:
    """Nothing to read, or it failed: the same once more after a pause."""

    delay_s: float
    unsaved: bool | None = None
    """Whether there is now something to save, should it end here; None: as before."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The store says that the lease is somebody else's."""


@dataclass(frozen=True, slots=True)
class LetGo:
    reason: Reason


@dataclass(frozen=True, slots=True)
class Lost:
    pass


Event = Done | Handled | Read | Again | Refused | LetGo | Lost

# What to do next: carry out the phase, or pause.


@dataclass(frozen=True, slots=True)
class Do:
    phase: Phase


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Action = Do | Pause


def begin() -> tuple[Life, Action]:
    return Life(), Do(Phase.OPENING)


def step(life: Life, event: Event) -> tuple[Life, Action | None]:
    """The next state and action. None: go on with the action under way."""
    match event:
        case LetGo(reason):
            return _end(life, reason)
        case Lost():
            return _end(life, Reason.LOST)
        case Refused():
            return _go(replace(life, ending=Reason.LOST), Phase.CLOSING)
        case Again(delay_s, unsaved):
            if unsaved is not None:
                life = replace(life, unsaved=unsaved)
            return _pause(life, delay_s)
        case Read(ended):
            return _go(life, Phase.SPLITTING if ended else Phase.HANDLING)
        case Handled(save, unsaved):
            due = unsaved and (save or life.ending is not None)
            return _go(life, Phase.SAVING if due else Phase.READING, unsaved)
        case Done():
            return _after(life)


def _after(life: Life) -> tuple[Life, Action | None]:
    match life.phase:
        case Phase.WAITING:
            return _go(life, life.resume)
        case Phase.SPLITTING:
            return _go(replace(life, ending=Reason.SPLIT), Phase.CLOSING)
        case Phase.CLOSING:
            return replace(life, phase=Phase.CLOSED), None
        case Phase.SAVING:
            return _go(life, Phase.READING, False)
        case _:
            return _go(life, Phase.READING)


def _end(life: Life, reason: Reason) -> tuple[Life, Action | None]:
    """Remember why to end; being lost outranks every other reason."""
    if life.ending is None or reason is Reason.LOST:
        life = replace(life, ending=reason)
    doing = life.resume if life.phase is Phase.WAITING else life.phase
    idle = life.phase in (Phase.WAITING, Phase.READING)
    if not idle or not _over(life, doing):
        return life, None
    if doing is not Phase.CLOSING:
        return _wind_up(life)
    if life.ending is Reason.LOST:  # nothing to release any more, so nothing to wait for
        return replace(life, phase=Phase.CLOSING), Do(Phase.CLOSING)
    return life, None


def _pause(life: Life, delay_s: float) -> tuple[Life, Action | None]:
    if life.phase is not Phase.CLOSING and _over(life, life.phase):
        return _wind_up(life)
    return replace(life, phase=Phase.WAITING, resume=life.phase), Pause(delay_s)


def _go(life: Life, phase: Phase, unsaved: bool | None = None) -> tuple[Life, Action | None]:
    unsaved = life.unsaved if unsaved is None else unsaved
    if phase is not Phase.CLOSING and _over(life, phase):
        return _wind_up(replace(life, unsaved=unsaved))
    # Not by ``replace``, which takes nearly twice as long: this is done three times a batch.
    return Life(phase=phase, resume=life.resume, unsaved=unsaved, ending=life.ending), Do(phase)


def _over(life: Life, phase: Phase) -> bool:
    """Whether to end rather than do that: writing down what was done still comes first."""
    if life.ending is Reason.LOST:
        return True
    return life.ending is not None and phase not in (Phase.SAVING, Phase.SPLITTING)


def _wind_up(life: Life) -> tuple[Life, Action | None]:
    if life.unsaved and life.ending is not Reason.LOST:
        return replace(life, phase=Phase.SAVING), Do(Phase.SAVING)
    return replace(life, phase=Phase.CLOSING), Do(Phase.CLOSING)
