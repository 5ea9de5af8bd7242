import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.core.event import Event, EventData
from leasehold.core.model import Checkpoint
from leasehold.errors import BadInput
from leasehold.feeds.hub import Hub
from leasehold.feeds.hub.batches import columns_of, event_bytes
from leasehold.feeds.hub.intake import columns_of_events, cut, size_of
from leasehold.feeds.hub.offsets import STEP
from leasehold.feeds.keys import partition_of
from leasehold.ports import Appended

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PROPERTIES = st.dictionaries(
    TEXT, st.one_of(TEXT, st.integers(-(2**53), 2**53), st.booleans(), st.none()), max_size=3
)


def events_of(hub: Hub, partition: str | int) -> list[Event]:
    start = hub.position_of(partition, "earliest")
    return list(hub.read_batch(partition, start, 1_000_000).events)


def test_a_key_always_goes_to_its_hashed_partition(hub: Hub) -> None:
    for number in range(20):
        key = f"H{number}"
        (appended,) = hub.send([EventData(b"x")], partition_key=key)
        assert appended.partition == str(partition_of(key, 4))
        assert events_of(hub, appended.partition)[-1].partition_key == key


def test_a_partition_id_is_obeyed(hub: Hub) -> None:
    assert hub.send(EventData("text"), partition_id="2") == [Appended("2", 0, 1)]
    assert hub.send([EventData(b"a"), EventData(b"b")], partition_id=2) == [Appended("2", 1, 2)]
    assert [event.body for event in events_of(hub, 2)] == [b"text", b"a", b"b"]


def test_sends_without_key_or_partition_take_turns(hub: Hub) -> None:
    partitions = [hub.send([EventData(b"x")] * 3)[0].partition for _ in range(8)]
    assert sorted(partitions[:4]) == ["0", "1", "2", "3"]
    assert partitions[:4] == partitions[4:]


def test_sending_nothing_stores_nothing(hub: Hub) -> None:
    assert list(hub.send([])) == []
    assert list(hub.send_columns([], [])) == []
    assert hub.properties().events == 0


def test_properties_keep_their_types(hub: Hub) -> None:
    properties = {"kind": "door", "level": 3, "share": 0.5, "open": True, "note": None}
    hub.send([EventData(b"a", properties), EventData(b"b")], partition_id=0)
    first, second = events_of(hub, 0)
    assert first.properties == properties
    assert second.properties == {}


@pytest.mark.parametrize(
    "properties", [{"a": object()}, {"a": float("nan")}, {"a": "half \ud800"}, {"\udc00": 1}]
)
def test_properties_that_are_no_plain_values_are_refused(
    hub: Hub, properties: dict[str, float]
) -> None:
    with pytest.raises(BadInput, match="plain values"):
        hub.send([EventData(b"a", properties)])


@pytest.mark.parametrize("body", [5, None, 1.5, ["a"]])
def test_a_body_that_is_neither_bytes_nor_text_is_refused(hub: Hub, body: object) -> None:
    with pytest.raises(BadInput):
        hub.send([EventData(b"fine"), EventData(body)])  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="bytes or text"):
        hub.batch().add(EventData(body))  # type: ignore[arg-type]
    assert hub.properties().events == 0


def test_a_key_and_a_partition_together_are_refused(hub: Hub) -> None:
    with pytest.raises(BadInput, match="not both"):
        hub.send([EventData(b"x")], partition_key="a", partition_id="1")


@pytest.mark.parametrize("partition", ["4", "-1", "01", "x", "", 99, "²"])
def test_an_unknown_partition_is_refused_with_the_known_ones(
    hub: Hub, partition: str | int
) -> None:
    for call in (
        lambda: hub.send([EventData(b"x")], partition_id=partition),
        lambda: hub.send_columns(None, [b"x"], partition_id=partition),
        lambda: hub.read_arrow(partition, 0),
        lambda: hub.partition_properties(partition),
        lambda: hub.trim_before(partition, 1),
    ):
        with pytest.raises(BadInput, match=r"is unknown: the hub .* has 0 to 3"):
            call()


def test_an_overlong_key_is_refused(hub: Hub) -> None:
    with pytest.raises(BadInput, match="257 bytes; at most 256"):
        hub.send([EventData(b"x")], partition_key="k" * 257)


def test_an_oversized_event_is_refused_with_its_place_and_the_bound(tmp_path: Path) -> None:
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=2, batch_bytes_max=100)
    hub.send([EventData(b"x" * 92)])
    message = r"event 1 of this send takes 101 bytes; batch_bytes_max is 100"
    with pytest.raises(BadInput, match=message):
        hub.send([EventData(b"x"), EventData(b"x" * 93)])
    with pytest.raises(BadInput, match=message):
        hub.send_columns(["a", "b"], [b"x", b"x" * 92])
    with pytest.raises(BadInput, match="takes 101 bytes"):
        hub.batch().add(EventData(b"x" * 93))
    assert hub.properties().events == 1


def test_an_oversized_batch_is_refused_whole(tmp_path: Path) -> None:
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=2, batch_bytes_max=100)
    with pytest.raises(BadInput, match="3 events takes 144 bytes; batch_bytes_max is 100"):
        hub.send([EventData(b"x" * 40)] * 3)
    assert hub.properties().events == 0


def test_a_batch_says_when_it_is_full_and_can_then_be_sent(tmp_path: Path) -> None:
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=4, batch_bytes_max=100)
    batch = hub.batch(partition_key="ab")
    assert [batch.add(EventData(b"x" * 40)) for _ in range(3)] == [True, True, False]
    assert (len(batch), batch.bytes) == (2, 100)
    (appended,) = hub.send(batch)
    assert appended == Appended(str(partition_of("ab", 4)), 0, 2)
    with pytest.raises(BadInput, match="has its partition already"):
        hub.send(batch, partition_id=1)


@given(st.lists(st.tuples(st.one_of(st.binary(max_size=30), TEXT), PROPERTIES), min_size=1), TEXT)
def test_an_event_alone_counts_as_many_bytes_as_in_columns(
    given_events: list[tuple[bytes | str, dict[str, str]]], key: str
) -> None:
    events = [EventData(*each) for each in given_events]
    for used in (key or None, None):
        _, batch = columns_of(*columns_of_events(events, used))
        assert event_bytes(batch).tolist() == [size_of(event, used) for event in events]


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(50, 200))
def test_cutting_keeps_every_event_in_order_and_every_run_within_the_bound(
    sizes: list[int], bytes_max: int
) -> None:
    runs = list(cut(np.array(sizes, dtype=np.int64), bytes_max))
    assert [place for start, stop in runs for place in range(start, stop)] == list(
        range(len(sizes))
    )
    assert all(sum(sizes[start:stop]) <= bytes_max for start, stop in runs)
    for start, stop in runs[:-1]:
        assert sum(sizes[start : stop + 1]) > bytes_max


def test_columns_go_to_their_keys_partitions_in_order(hub: Hub) -> None:
    keys = [f"H{number % 13}" for number in range(500)]
    bodies = [f"{number}" for number in range(500)]
    appended = hub.send_columns(pa.array(keys), pa.array(bodies))
    assert sum(each.events for each in appended) == 500
    for partition in range(4):
        expected = [
            (key, body.encode())
            for key, body in zip(keys, bodies, strict=True)
            if partition_of(key, 4) == partition
        ]
        assert [(e.partition_key, e.body) for e in events_of(hub, partition)] == expected


@pytest.mark.parametrize(
    ("keys", "bodies"),
    [
        (["a", "b"], [b"1", b"2"]),
        (pa.array(["a", "b"], pa.large_string()), pa.array([b"1", b"2"], pa.large_binary())),
        (pa.array(["a", "b"]).dictionary_encode(), pa.array(["1", "2"])),
        (pa.chunked_array([["a"], ["b"]]), pa.chunked_array([[b"1"], [b"2"]])),
        (pa.array(["x", "a", "b"]).slice(1), pa.array([b"0", b"1", b"2"]).slice(1)),
    ],
)
def test_columns_may_be_anything_that_arrow_can_turn_into_text_and_bytes(
    hub: Hub, keys: object, bodies: object
) -> None:
    hub.send_columns(keys, bodies)
    found = [event for partition in range(4) for event in events_of(hub, partition)]
    assert {(event.partition_key, event.body) for event in found} == {("a", b"1"), ("b", b"2")}


def test_columns_without_keys_are_spread_in_batches_that_fit(tmp_path: Path) -> None:
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=4, batch_bytes_max=1000)
    appended = hub.send_columns(None, [b"x" * 92] * 95)
    assert [each.events for each in appended] == [10] * 9 + [5]
    sizes = [hub.partition_properties(p).events for p in range(4)]
    assert max(sizes) - min(sizes) <= 10
    assert sum(sizes) == 95


def test_columns_by_key_are_cut_into_batches_that_fit(tmp_path: Path) -> None:
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=4, batch_bytes_max=1000)
    bodies = [b"%089d" % number for number in range(45)]
    appended = hub.send_columns(["key"] * 40 + ["K"] * 5, bodies)
    home, other = str(partition_of("key", 4)), str(partition_of("K", 4))
    assert home != other
    assert sorted(appended) == sorted(
        [Appended(home, first, 10) for first in (0, 10, 20, 30)] + [Appended(other, 0, 5)]
    )
    assert [event.body for event in events_of(hub, home)] == bodies[:40]


def test_columns_for_one_partition_stay_in_order_there(tmp_path: Path) -> None:
    hub = Hub.create(tmp_path / "h.db", name="h", namespace="n", partitions=4, batch_bytes_max=1000)
    bodies = [b"%d" % number for number in range(1000)]
    hub.send_columns(["k"] * 1000, bodies, partition_id=3)
    events = events_of(hub, 3)
    assert [event.body for event in events] == bodies
    assert {event.partition_key for event in events} == {"k"}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ((["a"], [b"1", b"2"]), "keys has 1 rows, bodies has 2"),
        ((None, [b"1"], [None, None]), "properties has 2 rows, bodies has 1"),
        ((["a", None], [b"1", b"2"]), "keys has no value at row 1"),
        ((["a", "b"], [None, b"2"]), "bodies has no value at row 0"),
        ((["a", "b"], [1, 2]), "bodies cannot be taken as a column of binary"),
        ((["k" * 300], [b"1"]), "at most 256"),
        ((None, [b"1"], ["{"]), "are not JSON"),
        ((None, [b"1"], ["[1]"]), "are not a JSON object"),
    ],
)
def test_columns_that_do_not_fit_are_refused_whole(
    hub: Hub, columns: tuple[object, ...], said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        hub.send_columns(*columns)
    assert hub.properties().events == 0


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.tuples(TEXT, st.binary(max_size=40), st.none() | PROPERTIES), max_size=15),
        max_size=6,
    ),
    st.integers(1, 9),
)
def test_whatever_is_sent_comes_back_once_in_order_per_key(
    tmp_path_factory: pytest.TempPathFactory,
    sends: list[list[tuple[str, bytes, dict[str, str] | None]]],
    max_events: int,
) -> None:
    path = tmp_path_factory.mktemp("hub") / "h.db"
    with Hub.create(path, name="h", namespace="n", partitions=3, batch_bytes_max=4096) as hub:
        for sent in sends:
            hub.send_columns(
                [key for key, _, _ in sent],
                [body for _, body, _ in sent],
                [None if each is None else json.dumps(each) for _, _, each in sent],
            )
        for partition in range(3):
            expected = [
                (key, body, properties or {})
                for sent in sends
                for key, body, properties in sent
                if partition_of(key, 3) == partition
            ]
            found: list[Event] = []
            position = Checkpoint(next_sequence=0)
            while events := (batch := hub.read_batch(partition, position, max_events)).events:
                found.extend(events)
                position = batch.next
            assert [(e.partition_key, e.body, e.properties) for e in found] == expected
            assert [event.sequence for event in found] == list(range(len(expected)))
            offsets = [int(event.offset) for event in found]
            assert all(after - before == STEP for before, after in pairwise(offsets))
            for event in found:
                after = Checkpoint(next_sequence=event.sequence + 1, token=event.offset)
                assert hub.position_of(partition, event.sequence + 1) == after


def test_more_partitions_can_be_added_but_none_taken_away(hub: Hub, tmp_path: Path) -> None:
    other = Hub.open(tmp_path / "hub.db")
    hub.raise_partitions(9)
    assert other.properties().partition_ids == tuple(str(number) for number in range(9))
    with pytest.raises(BadInput, match="has more than 3 partitions"):
        hub.raise_partitions(3)
    hub.raise_partitions(9)
    assert len(hub.properties().partition_ids) == 9
    other.send([EventData(b"x")], partition_id=8)
    assert [event.body for event in events_of(hub, 8)] == [b"x"]
    other.close()


def test_a_producer_notices_that_another_one_added_partitions(hub: Hub, tmp_path: Path) -> None:
    other = Hub.open(tmp_path / "hub.db")
    other.send([EventData(b"x")])
    hub.raise_partitions(50)
    keys = [f"H{number}" for number in range(30)]
    other.send_columns(keys, keys)
    for key in keys:
        (appended,) = other.send([EventData(key)], partition_key=key)
        assert appended.partition == str(partition_of(key, 50))
        assert [e.partition_key for e in events_of(hub, appended.partition)].count(key) == 2
    other.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a/b"},
        {"namespace": "-a"},
        {"partitions": 0},
        {"partitions": 10_001},
        {"batch_bytes_max": 0},
        {"retention_s": -1},
        {"retention_bytes": -1},
    ],
)
def test_a_hub_that_cannot_be_is_not_made(tmp_path: Path, wrong: dict[str, object]) -> None:
    arguments = {"name": "h", "namespace": "n", "partitions": 1} | wrong
    with pytest.raises(BadInput, match=repr(next(iter(wrong.values())))):
        Hub.create(tmp_path / "h.db", **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
