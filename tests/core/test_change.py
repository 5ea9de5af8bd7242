import json
import pickle
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.change import Change
from leasehold.core.event import Event

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.text(st.characters(codec="utf-8")), VALUES, max_size=4)


def change(**fields: object) -> Change:
    made = {"document": {"id": "a"}, "operation": "upsert", "sequence": 7, "offset": "c-7"}
    made |= {"enqueued_at": AT, "partition": "3", "partition_key": "H1"} | fields
    return Change(**made)


def kept_as_event(change: Change) -> Event:
    """What a dead-letter store keeps of it."""
    return Event(
        body=change.body,
        sequence=change.sequence,
        offset=change.offset,
        enqueued_at=change.enqueued_at,
        partition=change.partition,
        partition_key=change.partition_key,
        properties=json.loads(json.dumps(change.properties)),
    )


def test_a_change_goes_by_the_names_of_its_own_kind_too() -> None:
    made = change()
    assert (made.lsn, made.time, made.range) == (7, AT, "3")
    assert made.body == b'{"id":"a"}'


def test_a_delete_has_null_for_a_body() -> None:
    assert change(document=None, operation="delete").body == b"null"


@given(
    document=st.none() | DOCUMENTS,
    previous=st.none() | DOCUMENTS,
    operation=st.sampled_from(["insert", "replace", "upsert", "delete"]),
    expired=st.booleans(),
)
def test_a_change_comes_back_whole_from_what_is_kept_of_it_as_an_event(
    document: object, previous: object, operation: str, expired: bool
) -> None:
    made = change(document=document, previous=previous, operation=operation, expired=expired)
    assert Change.from_event(kept_as_event(made)) == made


def test_properties_are_plain_values() -> None:
    made = change(previous={"id": "a", "é": [1]}, operation="replace")
    assert made.properties == {"operation": "replace", "previous": '{"id":"a","é":[1]}'}


def test_a_change_can_be_sent_to_another_process() -> None:
    made = change(previous={"id": "a"})
    assert pickle.loads(pickle.dumps(made)) == made
