"""The store is out for longer than its leases live, and nothing else happens: nobody loses anything
to another who was only quicker to come back.

How often, and with what else at the same time, is up to ``make soak``: see test_chaos.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.driver import Chaos, Script
from chaos.stores import Store
from chaos.test_chaos import PATIENT, QUICK, SECONDS, SEED, run

pytestmark = [PATIENT, pytest.mark.takes_s(90)]


def test_an_outage_of_the_store_takes_no_lease_from_its_owner(store: Store, tmp_path: Path) -> None:
    script = Script(
        seed=SEED,
        seconds=SECONDS / 3,
        actions=["outage"] * len(store.outages),
        settings={**QUICK, "lease_ttl_s": 2.0},
        outage_s=(3.0, 6.0),
        between_s=(2.5, 4.0),
    )
    chaos = Chaos(script, tmp_path, store.url, store.outages)
    run(chaos, tmp_path)
    assert chaos.done["outage"] >= len(store.outages)
