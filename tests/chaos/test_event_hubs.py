"""An event hub as the feed: what test_chaos.py does, with an endpoint that is killed and started
again besides. The broker fences as well: no two instances read one partition."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.driver import PARTITIONS, Action, Chaos, Script
from chaos.feeds import event_hub_place
from chaos.test_chaos import PATIENT, QUICK, SECONDS, SEED, run
from support.amqp_endpoint import served_hub

pytestmark = [PATIENT, pytest.mark.takes_s(45)]


def test_whatever_happens_to_instances_and_endpoint_nothing_is_lost_or_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions: tuple[Action, ...] = ("kill", "pause", "stop", "join", "broker")
    settings = {**QUICK, "lease_ttl_s": 4.0, "retry_max_s": 1.0}
    script = Script(
        seed=SEED, seconds=SECONDS, actions=actions, settings=settings, events_per_s=300.0
    )
    with served_hub(tmp_path, partitions=PARTITIONS) as served:
        monkeypatch.setenv("AZURE_EVENTHUBS_CONNECTION_STRING", served.connection_string)
        chaos = Chaos(
            script, tmp_path, f"sqlite:///{tmp_path}/leases.db", (), event_hub_place(served)
        )
        run(chaos, tmp_path)
    assert all(chaos.done[action] for action in actions)
