from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.feeds.keys import fnv1a, partition_of, partitions_of

KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=60)


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_the_hash_is_the_published_fnv1a(data: bytes, hashed: int) -> None:
    assert fnv1a(data) == hashed


def test_a_key_keeps_its_partition_for_ever() -> None:
    keys = ["", "H000123", "H000124", "küche", "x" * 200]
    assert [partition_of(key, 16) for key in keys] == [6, 8, 13, 10, 6]


@given(KEYS, st.integers(1, 10_000))
def test_many_keys_at_once_go_where_each_goes_alone(keys: list[str], partitions: int) -> None:
    chosen = partitions_of(pa.array(keys, pa.string()), partitions)
    assert chosen.tolist() == [partition_of(key, partitions) for key in keys]


@given(KEYS, st.data())
def test_a_slice_of_a_column_is_hashed_as_its_own_keys(
    keys: list[str], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(keys)))
    column = pa.array(keys, pa.string()).slice(start)
    assert partitions_of(column, 7).tolist() == [partition_of(key, 7) for key in keys[start:]]


@pytest.mark.parametrize("partitions", [2, 3, 16, 100])
def test_keys_that_differ_in_a_digit_spread_evenly(partitions: int) -> None:
    count = 100_000
    column = pa.array([f"H{number:06d}" for number in range(count)])
    sizes = Counter(partitions_of(column, partitions).tolist())
    share = count / partitions
    assert len(sizes) == partitions
    # Six standard deviations of a fair dealing-out.
    assert np.abs(np.array(list(sizes.values())) - share).max() < 6 * np.sqrt(share)
