import json
import subprocess
import sys

import pytest
from support.command_line import leasehold


def test_help_names_every_command():
    text = leasehold("--help").stdout
    for command in ("tour", "hub", "leases", "lag", "rewind", "verify"):
        assert command in text
        assert "--help" in leasehold(command, "--help").stdout


def test_verify_ends_with_a_line_of_totals():
    text = " ".join(leasehold("verify", "--seeds", "4", "--first", "10").stdout.split())
    assert text.startswith("4 seeds, ")
    assert "faults injected" in text
    assert "0 violations" in text


def test_verify_replays_a_seed_with_a_trace():
    text = leasehold("verify", "--seed", "2").stdout
    assert "i1 starts" in text
    assert "all held" in text


def test_verify_names_the_first_failing_seed_and_exits_with_one():
    done = leasehold("verify", "--seeds", "8", "--sabotage", "local-clock", ok=False)
    assert done.returncode == 1
    assert "leasehold verify --seed 0 --sabotage local-clock" in done.stdout
    assert "seed 0: " in done.stdout


def test_the_tour_shows_scaling_and_faults():
    text = " ".join(leasehold("tour").stdout.split())
    assert "1 → 12" in text
    assert "every invariant held" in text
    assert "although" in text  # what the sabotaged run ends with
    assert "two was killed (SIGKILL): one 8, three 8 partitions" in text
    assert "0 lost" in text


def test_leases_of_an_empty_store_say_so(tmp_path):
    (tmp_path / "leases.db").touch()
    done = leasehold("leases", "--store", f"sqlite:///{tmp_path}/leases.db")
    assert "no leases" in done.stdout


def test_leases_list_every_field_of_an_ownership(tmp_path):
    url = f"sqlite:///{tmp_path}/leases.db"
    program = f"""
import asyncio
from leasehold.core.model import Checkpoint, Group
from leasehold.stores import open_store

async def main():
    store = open_store({url!r})
    group = Group(namespace="homes.local", feed="sensors", name="alerts")
    await store.create(group, {{"7": Checkpoint(next_sequence=42)}})
    await store.acquire((await store.snapshot(group)).leases, "worker-1", 10.0)
    await store.close()

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    (row,) = json.loads(leasehold("leases", "--store", url, "--json").stdout)
    assert row["namespace"] == "homes.local"
    assert (row["hub"], row["group"], row["partition"]) == ("sensors", "alerts", "7")
    assert (row["owner"], row["next_sequence"]) == ("worker-1", 42)
    assert row["last_modified"] > 1_700_000_000
    table = leasehold("leases", "--store", url, "--group", "alerts").stdout
    assert "worker-1" in table
    assert "no leases" in leasehold("leases", "--store", url, "--group", "other").stdout


@pytest.mark.parametrize(
    ("url", "says"),
    [("redis://here", "unknown store scheme"), ("leases.db", "sqlite:///leases.db")],
)
def test_a_wrong_store_url_gets_one_clear_line(url, says):
    done = leasehold("leases", "--store", url, ok=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
