from __future__ import annotations

from datetime import UTC, datetime

import pytest

from leasehold.core.start import AtOffset, AtSequence, AtTime, Earliest, Latest
from leasehold.errors import BadInput
from leasehold.spark.source.options import Options


def parse(**options: str) -> Options:
    return Options.parse({"path": "hub.db", **options})


def test_without_options_a_read_begins_at_the_earliest_event() -> None:
    assert parse() == Options(path="hub.db", start={"*": Earliest()})


def test_names_are_known_in_any_case_as_spark_has_it() -> None:
    assert parse(TASKS="3", maxeventspertrigger="5").tasks == 3
    assert parse(maxeventspertrigger="5").max_events == 5


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Earliest()),
        ("latest", Latest()),
        (" 12 ", AtSequence(12)),
        ("sequence:12", AtSequence(12)),
        ("offset:12", AtOffset("12")),
        ("time:2026-01-31T12:00:00Z", AtTime(datetime(2026, 1, 31, 12, tzinfo=UTC))),
    ],
)
def test_positions_are_given_in_every_form(text: str, position: object) -> None:
    assert parse(startingPosition=text).start == {"*": position}
    by_partition = parse(
        startingPosition=f'{{"0": "{text.strip()}", "*": 3}}' if ":" in text else text
    )
    assert position in by_partition.start.values()


def test_positions_by_partition_are_json() -> None:
    given = '{"0": "sequence:41", "3": 7, "*": "latest"}'
    expected = {"0": AtSequence(41), "3": AtSequence(7), "*": Latest()}
    assert parse(startingPosition=given).start == expected
    assert parse(endingPosition=given).end == expected


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffsets": "x"}, "'startingOffsets' is unknown; these are known: path, mode, "),
        ({"path": " "}, "'path' is missing"),
        ({"mode": "newest"}, "'mode' is 'newest'; it is one of latest, all"),
        ({"onPositionGone": "skip"}, "'onPositionGone' is 'skip'; it is one of earliest, fail"),
        ({"tasks": "0"}, "'tasks' is '0'; it is a whole number from 1 on"),
        ({"maxEventsPerTrigger": "1e6"}, "'maxEventsPerTrigger' is '1e6'; it is a whole"),
        ({"startingPosition": "first"}, "'startingPosition': start 'first' is not one of 'earl"),
        ({"startingPosition": "time:2026-01-31T12:00:00"}, "needs a time zone"),
        ({"startingPosition": '{"0": "first"}'}, "'startingPosition': partition 0: start 'first'"),
        ({"startingPosition": '{"0": '}, "'startingPosition' is '{\"0\":', which is no JSON"),
        ({"endingPosition": "-1"}, "'endingPosition': start '-1' is not one of"),
        ({"endingPosition": "earliest"}, "cannot end at 'earliest'"),
    ],
)
def test_a_bad_option_is_named_with_what_would_do(options: dict[str, str], told: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(**options)
    assert told in str(caught.value)
