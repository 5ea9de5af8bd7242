import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.start import (
    AtOffset,
    AtSequence,
    AtTime,
    Committed,
    Earliest,
    Latest,
    Start,
    parse,
    parse_per_partition,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
STARTS = st.one_of(
    st.just(Earliest()),
    st.just(Latest()),
    st.builds(AtSequence, st.integers(min_value=0)),
    st.builds(AtOffset, st.integers(min_value=0).map(str)),
    st.builds(AtTime, st.datetimes(timezones=st.just(UTC))),
    st.builds(Committed, st.sampled_from(["g", "a:b"])),
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("earliest", Earliest()),
        (" Latest ", Latest()),
        (0, AtSequence(0)),
        ("sequence:12", AtSequence(12)),
        ("offset:4711", AtOffset("4711")),
        ("offset:AbC", AtOffset("AbC")),
        ("committed: my:group ", Committed("my:group")),
        (Committed("g"), Committed("g")),
        (NOON, AtTime(NOON)),
        ("time:2026-01-31T12:00:00Z", AtTime(NOON)),
        ("time:2026-01-31T14:00:00+02:00", AtTime(NOON)),
        (NOON.astimezone(timezone(timedelta(hours=-5))), AtTime(NOON)),
    ],
)
def test_a_start_may_be_written_in_any_of_the_stated_forms(written: object, meant: Start) -> None:
    assert parse(written) == meant


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("", "is not one of"),
        ("now", "is not one of"),
        ("earliest:1", "is not one of"),
        ("sequence", "is not one of"),
        (None, "is not one of"),
        (True, "whole number"),
        (1.5, "is not one of"),
        (-1, "whole number from 0 on"),
        ("sequence:x", "whole number from 0 on"),
        ("sequence:-3", "whole number from 0 on"),
        (AtSequence(-3), "whole number from 0 on"),
        ("offset:", "offset is missing"),
        ("time:noon", "write the time like"),
        ("time:2026-01-31T12:00:00", "needs a time zone"),
        (datetime(2026, 1, 31), "needs a time zone"),
        (AtTime(datetime(2026, 1, 31)), "needs a time zone"),
    ],
)
def test_a_start_that_means_nothing_is_refused_with_what_would_do(
    written: object, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        parse(written)


@given(STARTS)
def test_parsing_a_start_again_changes_nothing(start: Start) -> None:
    assert parse(start) == start


@given(st.text())
def test_any_text_is_either_a_start_or_a_value_error(text: str) -> None:
    try:
        start = parse(text)
    except ValueError:
        with pytest.raises(ValueError, match=re.escape(repr(text))):
            parse(text)
    else:
        assert parse(start) == start


def test_one_start_stands_for_every_partition() -> None:
    assert parse_per_partition("latest") == {"*": Latest()}


def test_partitions_may_have_starts_of_their_own() -> None:
    starts = parse_per_partition({"0": 7, 1: "latest", "*": "earliest"})
    assert starts == {"0": AtSequence(7), "1": Latest(), "*": Earliest()}


def test_a_bad_start_of_one_partition_names_the_partition() -> None:
    with pytest.raises(ValueError, match="partition 3: start 'soon'"):
        parse_per_partition({"3": "soon"})
