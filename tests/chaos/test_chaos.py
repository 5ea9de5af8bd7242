"""Real processes, killed, stopped, started and ended by chance, on every lease store, which is out
now and then.

``make soak`` runs the same for longer. To repeat a run: LEASEHOLD_CHAOS_SEED=… pytest tests/chaos.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from chaos.driver import Action, Chaos, Script
from chaos.judge import Verdict
from chaos.processes import WentWrong
from chaos.stores import Store

# What hangs is noticed by what waits for it, long before; a busy machine takes its time.
PATIENT = pytest.mark.timeout(1200)
pytestmark = [PATIENT, pytest.mark.takes_s(125)]

# The same every time unless it is set; empty (as in make soak): by chance.
SEED = int(os.environ.get("LEASEHOLD_CHAOS_SEED", "7") or random.randrange(1 << 32))
SECONDS = float(os.environ.get("LEASEHOLD_CHAOS_S") or 9.0)

QUICK = {"balance_interval_s": 0.5, "poll_interval_s": 0.2, "max_events": 100}


def run(chaos: Chaos, folder: Path) -> Verdict:
    told = f"seed {SEED}, logs in {folder}"
    print(told)
    try:
        verdict = chaos.run()
    except WentWrong as error:
        pytest.fail(f"{told}: {error}")
    print(f"{dict(chaos.done)}: {verdict}")
    assert not verdict.problems, f"{told}: {len(verdict.problems)}, {verdict.problems[:20]}"
    return verdict


def test_whatever_happens_to_instances_and_store_nothing_is_lost_or_out_of_order(
    store: Store, tmp_path: Path
) -> None:
    actions: tuple[Action, ...] = ("kill", "pause", "stop", "join", "outage")
    settings = {**QUICK, "lease_ttl_s": 2.0}
    script = Script(seed=SEED, seconds=SECONDS, actions=actions, settings=settings)
    chaos = Chaos(script, tmp_path, store.url, store.outages)
    run(chaos, tmp_path)
    assert all(chaos.done[action] for action in actions)


def test_moves_in_good_order_deliver_no_event_twice(store_url: str, tmp_path: Path) -> None:
    # With leases that long, only a machine at a standstill could make them expire.
    settings = {**QUICK, "lease_ttl_s": 60.0}
    script = Script(seed=SEED, seconds=SECONDS * 2 / 3, actions=("stop", "join"), settings=settings)
    chaos = Chaos(script, tmp_path, store_url)
    verdict = run(chaos, tmp_path)
    assert verdict.twice.total() == 0
    assert verdict.moves["orderly"] == verdict.moves.total() > 0
