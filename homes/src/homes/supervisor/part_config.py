"""The configuration that a part of the application gets when it is started."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from homes.domain.reading import HOME_ID
from homes.local.places import Places
from homes.local.urls import EMBEDDED, Urls
from leasehold import strict_json

VARIABLE = "LEASEHOLD_PART"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartConfig:
    """What one process of the application is told. It travels in the environment: arguments are
    visible to everybody on the machine."""

    part: str
    folder: str
    instance: str
    homes: int
    starter: int = 0
    """The process that started it."""
    speed: str = "1"
    history_hours: float = 0.0
    seed: int = 1
    webhook: str = ""
    webhook_secret: str = field(default="", repr=False)
    urls: Urls = EMBEDDED
    malformed: float = 0.0
    unknown: float = 0.0
    wrong_time: float = 0.0

    @property
    def places(self) -> Places:
        return Places(Path(self.folder), self.urls)

    def has(self, home: str) -> bool:
        """Whether there is such a home."""
        return HOME_ID.fullmatch(home) is not None and int(home[1:]) < self.homes

    def environ(self) -> dict[str, str]:
        """Of the process that gets this."""
        return {**os.environ, VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environ(cls) -> Self:
        """Of this process. It is taken out, for its children must not see it."""
        given = strict_json.loads(os.environ.pop(VARIABLE))
        return cls(**given | {"urls": Urls(**given["urls"])})
