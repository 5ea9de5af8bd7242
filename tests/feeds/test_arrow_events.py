import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.feeds import arrow_events
from leasehold.feeds.arrow_events import EVENT_SCHEMA, ArrowEvents, to_datetime, to_unix_us


def events(count: int) -> ArrowEvents:
    columns = {
        "body": [b"%d" % n for n in range(count)],
        "sequence": list(range(10, 10 + count)),
        "offset": [100 * n for n in range(count)],
        "enqueued_at": [1_000_000 * (n // 2) for n in range(count)],
        "partition_key": [None if n % 3 else f"k{n}" for n in range(count)],
        "properties": [f'{{"n": {n}}}' if n % 2 else None for n in range(count)],
    }
    return ArrowEvents(pa.RecordBatch.from_pydict(columns, schema=EVENT_SCHEMA), "7")


def test_an_event_carries_every_column() -> None:
    event = events(4)[3]
    assert event.body == b"3"
    assert event.sequence == 13
    assert event.offset == "300"
    assert event.enqueued_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert event.partition == "7"
    assert event.partition_key == "k3"
    assert event.properties == {"n": 3}


@given(st.integers(0, 30), st.integers(-35, 35), st.integers(-35, 35))
def test_slices_are_those_of_a_list(count: int, start: int, stop: int) -> None:
    everything = list(events(count))
    part = events(count)[start:stop]
    assert list(part) == everything[start:stop]
    assert len(part) == len(everything[start:stop])


@given(st.integers(1, 30), st.data())
def test_an_event_alone_is_the_same_as_among_all(count: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(-count, count - 1))
    assert events(count)[place] == list(events(count))[place]


def test_a_place_outside_is_an_index_error() -> None:
    for place in (3, -4):
        with pytest.raises(IndexError, match=f"event {place} of a batch of 3"):
            events(3)[place]
    with pytest.raises(ValueError, match="step of 2"):
        events(3)[::2]


def test_no_event_is_made_until_one_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(arrow_events.Event, "_make", made.append)
    whole = events(10)
    assert len(whole[2:5]) == 3
    assert whole.arrow.num_rows == 10
    assert made == []
    whole[4]
    assert len(made) == 1


def test_events_can_be_sent_to_another_process() -> None:
    event = events(3)[1]
    assert pickle.loads(pickle.dumps(event)) == event


@given(st.datetimes(datetime(1950, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)))
def test_times_keep_every_microsecond(time: datetime) -> None:
    assert to_datetime(to_unix_us(time)) == time
