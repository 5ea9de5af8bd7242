"""What a processor tells about itself while it runs."""

import asyncio
import re

import pytest
from processing import fill, make_hub, make_processor, open_leases, until

import leasehold as lh


def value(text, name, **labels):
    """The sum of all samples of that name with those labels."""
    wanted = [f'{key}="{val}"' for key, val in labels.items()]
    found = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if re.match(rf"{name}[{{ ]", line) and all(label in line for label in wanted)
    ]
    return sum(found) if found else None


def test_a_running_processor_shows_what_it_owns_did_and_has_before_it(tmp_path):
    async def main():
        hub = make_hub(tmp_path, partitions=2)
        fill(hub, 50, partitions=["0"])
        go_on = asyncio.Event()

        async def on_batch(events):
            if any(event.partition == "1" for event in events):
                await go_on.wait()

        processor = make_processor(hub, open_leases(tmp_path), on_batch=on_batch)
        running = asyncio.ensure_future(processor.run_async())
        fill(hub, 30, partitions=["1"])

        def shown(name, **labels):
            return value(processor.metrics.render(), name, **labels)

        await until(lambda: shown("leasehold_owned_partitions") == 2)
        await until(lambda: shown("leasehold_events_handled_total", partition="0") == 50)
        await until(lambda: shown("leasehold_lag_events", partition="1") == 30)
        assert shown("leasehold_store_requests_total", verb="heartbeat") >= 1
        assert shown("leasehold_handler_seconds_count") >= 1
        go_on.set()
        await until(lambda: shown("leasehold_lag_events", partition="1") == 0)
        processor.stop()
        await running
        assert shown("leasehold_owned_partitions") == 0
        assert shown("leasehold_lease_moves_total", reason="shutdown") == 2

    asyncio.run(main())


def test_retries_and_dead_letters_are_counted(tmp_path):
    hub = make_hub(tmp_path, partitions=1)
    fill(hub, 5, partitions=["0"])

    def on_event(event):
        if event.sequence == 2:
            raise ValueError("no")

    processor = make_processor(
        hub,
        open_leases(tmp_path),
        on_event=on_event,
        retry=lh.Retry(attempts=2, then="dead-letter", backoff_s=0.01),
        dead_letters=lh.open_dead_letters("memory://"),
    )
    processor.run(until_drained=True)
    text = processor.metrics.render()
    assert value(text, "leasehold_dead_letters_total") == 1
    assert value(text, "leasehold_retries_total") == pytest.approx(2, abs=1)
    assert value(text, "leasehold_events_handled_total") == 4
