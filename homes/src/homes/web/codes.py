"""Which access codes hold: each home's is computed from the secret, and from how often it was
replaced. Only homes whose code was ever revoked are kept."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path

from homes.web.private_files import locked, private_file
from leasehold import BadInput, strict_json

log = logging.getLogger("leasehold")
LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeState:
    number: int = 0
    """How many the home had before. A session knows the number of the code it began with."""
    revoked: bool = False
    """It has none now."""
    changed_at: int = 0


class Codes:
    def __init__(self, path: Path | None, clock: Callable[[], float]) -> None:
        """Without a ``path``, only this process knows."""
        self._path, self._clock = path, clock
        self._states: Mapping[str, CodeState] = {}
        self._looked_at = -inf
        self._seen: tuple[int, ...] = ()
        self._look()

    def state(self, home_id: str) -> CodeState:
        if not 0 <= self._clock() - self._looked_at < LOOK_S:
            try:
                self._look()
            except BadInput as error:  # what was revoked stays revoked
                log.error("%s; codes revoked elsewhere are not known here", error)
        return self._states.get(home_id, CodeState())

    def changed(self) -> Mapping[str, CodeState]:
        """Homes whose code is not their first."""
        self._look()
        return self._states

    def revoke(self, home_id: str) -> None:
        """The code, and the sessions that it began, end; the home has none until it gets one."""
        self._change(home_id, revoked=True)

    def replace(self, home_id: str) -> None:
        """The same, and the home has a new code."""
        self._change(home_id, revoked=False)

    def _change(self, home_id: str, *, revoked: bool) -> None:
        if self._path is None:
            self._states = {**self._states, home_id: self._next(home_id, revoked)}
            return
        try:
            with locked(self._path):
                self._look()
                states = {**self._states, home_id: self._next(home_id, revoked)}
                kept = {home: asdict(state) for home, state in states.items()}
                with private_file(self._path, kept) as made:
                    os.replace(made, self._path)
                self._look()
        except OSError as error:
            raise BadInput(f"{self._path} cannot be written: {error.strerror}") from error

    def _next(self, home_id: str, revoked: bool) -> CodeState:
        number = self._states.get(home_id, CodeState()).number + 1
        return CodeState(number=number, revoked=revoked, changed_at=int(self._clock()))

    def _look(self) -> None:
        self._looked_at = self._clock()
        if self._path is None:
            return
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns, found.st_size)
            if seen != self._seen:
                kept = strict_json.loads(self._path.read_bytes())
                self._states = {home: CodeState(**state) for home, state in kept.items()}
                self._seen = seen
        except FileNotFoundError:
            if self._seen:
                raise BadInput(f"{self._path} is gone; put it back from a backup") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            # Not set aside: revoked codes would hold again.
            raise BadInput(f"{self._path} cannot be read: {error}; mend or remove it") from error
