"""What is said while the application starts."""

from __future__ import annotations

import pytest

from homes.domain.waiting import Startup, waiting_for


@pytest.mark.parametrize(
    ("startup", "text"),
    [
        (
            Startup(history=0.4, instances=["starting", "starting"]),
            "history 40%, Spark is starting",
        ),
        (Startup(instances=["starting"]), "Spark is starting"),
        (Startup(instances=["running"]), "the pipeline has not begun yet"),
        (Startup(instances=["ended", "starting"]), "Spark is starting"),
        (
            Startup(instances=["ended", "ended"], lag_events=9, lag_s=1),
            "no instance of the pipeline runs",
        ),
        (
            Startup(instances=["running"], lag_events=1_200_000, lag_s=180, per_s=160_000),
            "1,200,000 readings to go, live in about 8 s",
        ),
        (Startup(instances=["running"], lag_events=5_000, lag_s=60), "5,000 readings to go"),
        (
            Startup(lag_events=5_000, lag_s=60, per_s=20_000),
            "5,000 readings to go, live in about 1 s",
        ),
        (Startup(lag_events=5_000, lag_s=60, per_s=-1), "5,000 readings to go"),
        (
            Startup(instances=["running"], lag_events=9_000, lag_s=3, aggregated=False),
            "the first of 9,000 readings are being aggregated",
        ),
        (Startup(history=0.99, instances=["running"], lag_events=0, lag_s=0), "history 99%"),
    ],
)
def test_what_is_missing_is_said(startup: Startup, text: str) -> None:
    assert waiting_for(startup) == text


@pytest.mark.parametrize(
    "startup",
    [
        Startup(instances=["running"], lag_events=6_000, lag_s=1.2),
        Startup(instances=["running", "starting"], lag_events=0, lag_s=0),
        Startup(lag_events=3, lag_s=None),
        Startup(),
        Startup(instances=[]),
    ],
)
def test_nothing_is_said_when_readings_are_live_or_nobody_works_on_it(startup: Startup) -> None:
    assert waiting_for(startup) == ""
