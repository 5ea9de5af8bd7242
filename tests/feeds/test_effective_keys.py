from azure.cosmos.partition_key import PartitionKey, _Undefined
from hypothesis import example, given
from hypothesis import strategies as st

from leasehold.feeds.effective_keys import (
    UNDEFINED,
    bound_of,
    effective_key,
    effective_number,
    number_of,
)

VALUES = st.text() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.booleans()


def azures(*values):
    """What Azure's own client computes."""
    known = [_Undefined() if value is UNDEFINED else value for value in values]
    path = "/a" if len(values) == 1 else [f"/{place}" for place in range(len(values))]
    return PartitionKey(path)._get_effective_partition_key_string(known).upper()


@given(VALUES | st.none() | st.just(UNDEFINED))
@example("")
@example("x" * 15)
@example("x" * 100)
def test_a_key_is_where_clients_look_for_it(value):
    assert effective_key(value) == azures(value)
    assert effective_number(value) < 1 << 126


@given(st.lists(VALUES, min_size=2, max_size=3))
def test_hierarchical_keys_are_where_clients_look_for_them(values):
    assert effective_key(tuple(values)) == azures(*values)
    assert effective_number(tuple(values)) == effective_number(values[0])


@given(st.integers(0, 2**126))
def test_bounds_come_back_and_sort_like_their_numbers(number):
    bound = bound_of(number)
    assert number_of(bound) == number
    assert (bound < "20") == (number < 2**125)


def test_known_keys_stay_where_they_are():
    assert effective_key("H000123") == azures("H000123")
    assert bound_of(0) == ""
    assert bound_of(1 << 126) == "FF"
