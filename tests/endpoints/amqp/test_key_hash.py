"""Keys go where official clients say."""

import pytest
from azure.eventhub._buffered_producer._partition_resolver import generate_hash_code
from hypothesis import given
from hypothesis import strategies as st

from leasehold.endpoints.amqp.key_hash import official_partition_of


@given(st.text(st.characters(codec="ascii"), max_size=60), st.integers(1, 100))
def test_the_hash_is_that_of_the_python_client(key: str, partitions: int) -> None:
    assert official_partition_of(key, partitions) == abs(generate_hash_code(key)) % partitions


@pytest.mark.parametrize("partitions", [1, 4, 16, 100])
def test_keys_are_spread_over_all_partitions(partitions: int) -> None:
    chosen = {official_partition_of(f"home-{n}", partitions) for n in range(5000)}
    assert chosen == set(range(partitions))
