"""The data source's options: from text to values, or an error that says what would do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from leasehold.core import strict_json
from leasehold.core.change import Mode
from leasehold.core.start import Earliest, Start, parse_per_partition
from leasehold.errors import BadInput
from leasehold.settings import OnPositionGone

NAMES = (
    "path",
    "mode",
    "startingPosition",
    "endingPosition",
    "maxEventsPerTrigger",
    "tasks",
    "onPositionGone",
)
MAX_EVENTS_PER_TRIGGER = 1_000_000
EXAMPLE = '{"0": "sequence:41", "*": "earliest"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    path: str
    mode: str | None = None
    start: Mapping[str, Start]
    """By partition, with ``"*"`` for those not named."""
    end: Mapping[str, Start] | None = None
    """None: everything that is there when the read is planned."""
    max_events: int | None = None
    tasks: int | None = None
    on_position_gone: OnPositionGone = "fail"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        known = {name.lower(): name for name in NAMES}
        options = {}
        for name, text in given.items():
            if name.lower() not in known:
                raise BadInput(f"option {name!r} is unknown; these are known: {', '.join(NAMES)}")
            options[known[name.lower()]] = text
        if not options.get("path", "").strip():
            raise BadInput(
                "option 'path' is missing: the feed's URL, or a hub's or container's file, .load(…)"
            )
        start = _positions(options, "startingPosition")
        end = _positions(options, "endingPosition")
        if end is not None and Earliest() in end.values():
            raise BadInput("option 'endingPosition': a read cannot end at 'earliest'")
        return cls(
            path=options["path"].strip(),
            mode=_one_of(options, "mode", get_args(Mode)),
            start={"*": Earliest()} if start is None else start,
            end=end,
            max_events=_count(options, "maxEventsPerTrigger"),
            tasks=_count(options, "tasks"),
            on_position_gone=cast(
                OnPositionGone,
                _one_of(options, "onPositionGone", get_args(OnPositionGone)) or "fail",
            ),
        )

    def require_unset(self, kind: str, **values: Any) -> None:
        for name, value in values.items():
            if value is not None:
                raise BadInput(f"option {name!r} is not for {kind}: leave it out")


def _one_of(options: Mapping[str, str], name: str, valid: tuple[str, ...]) -> str | None:
    if name not in options:
        return None
    text = options[name].strip().lower()
    if text not in valid:
        raise BadInput(f"option {name!r} is {options[name]!r}; it is one of {', '.join(valid)}")
    return text


def _count(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    text = options[name].strip()
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise BadInput(f"option {name!r} is {options[name]!r}; it is a whole number from 1 on")
    return int(text)


def _positions(options: Mapping[str, str], name: str) -> Mapping[str, Start] | None:
    if name not in options:
        return None
    text = options[name].strip()
    value: Any = text
    if text.startswith("{"):
        try:
            value = strict_json.loads(text)
        except ValueError as error:
            said = f"option {name!r} is {text!r:.200}, which is no JSON: {error}"
            raise BadInput(said) from error
    elif text.isascii() and text.isdigit():
        value = int(text)
    try:
        return parse_per_partition(value)
    except ValueError as error:
        raise BadInput(f"option {name!r}: {error}. As JSON, by partition: {EXAMPLE}") from error
