"""What a processor tells about itself while it runs."""

import asyncio
import re
from dataclasses import replace

import pytest
from support.processing import fill, make_hub, make_processor, open_leases, until

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
            return value(processor.telemetry.render(), name, **labels)

        await until(lambda: shown("leasehold_owned_partitions") == 2)
        await until(lambda: shown("leasehold_events_handled_total", partition="0") == 50)
        await until(lambda: shown("leasehold_lag_events", partition="1") == 30)
        before = shown("leasehold_lag_seconds", partition="1")
        await until(lambda: shown("leasehold_lag_seconds", partition="1") > before)
        assert shown("leasehold_lag_seconds", partition="0") == 0
        assert 0 <= shown("leasehold_renewal_age_seconds") < 60
        assert shown("leasehold_store_requests_total", verb="heartbeat") >= 1
        assert shown("leasehold_handler_seconds_count") >= 1
        go_on.set()
        await until(lambda: shown("leasehold_lag_events", partition="1") == 0)
        processor.stop()
        await running
        assert shown("leasehold_owned_partitions") == 0
        assert shown("leasehold_renewal_age_seconds") is None
        assert shown("leasehold_store_errors_total") == 0
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
    text = processor.telemetry.render()
    assert value(text, "leasehold_dead_letters_total") == 1
    assert value(text, "leasehold_retries_total") == pytest.approx(2, abs=1)
    assert value(text, "leasehold_events_handled_total") == 4


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
def test_a_lag_that_is_not_known_any_more_is_not_shown_at_its_last_value(
    tmp_path, monkeypatch, trouble
):
    async def main():
        hub = make_hub(tmp_path, partitions=1)
        settings = {"read_timeout_s": 0.2, "on_batch": lambda events: None}
        processor = make_processor(hub, lh.open_store("memory://"), **settings)
        running = asyncio.ensure_future(processor.run_async())

        def shown():
            return value(processor.telemetry.render(), "leasehold_lag_events")

        async def extents():
            if trouble == "fails":
                raise lh.FeedUnavailable("gone")
            await asyncio.Event().wait()

        await until(lambda: shown() == 0)
        with monkeypatch.context() as broken:
            broken.setattr(hub, "extents", extents)
            await until(lambda: shown() is None)
        await until(lambda: shown() == 0)
        processor.stop()
        await running

    asyncio.run(main())


def test_one_lease_that_cannot_be_renewed_shows_in_the_errors_of_the_store(tmp_path):
    async def main():
        store = lh.open_store("memory://")
        hub = make_hub(tmp_path, partitions=2)
        processor = make_processor(hub, store, on_batch=lambda events: None)
        running = asyncio.ensure_future(processor.run_async())

        def shown(name, **labels):
            return value(processor.telemetry.render(), name, **labels)

        await until(lambda: shown("leasehold_owned_partitions") == 2)
        renew = store.renew

        async def partly(leases):
            answer = await renew([lease for lease in leases if lease.partition != "0"])
            return replace(answer, unknown={"0": lh.StoreUnavailable("somebody keeps it locked")})

        store.renew = partly
        await until(lambda: shown("leasehold_store_errors_total", verb="renew") >= 2)
        store.renew = renew
        processor.stop()
        await running

    asyncio.run(main())


def test_a_store_in_trouble_shows_in_its_errors_by_verb_and_in_the_age_of_renewals(tmp_path):
    async def main():
        hub, store = make_hub(tmp_path, partitions=1), lh.open_store("memory://")
        processor = make_processor(hub, store, on_batch=lambda events: None)
        running = asyncio.ensure_future(processor.run_async())

        def shown(name, **labels):
            return value(processor.telemetry.render(), name, **labels)

        await until(lambda: shown("leasehold_owned_partitions") == 1)
        renew = store.renew

        async def silent(leases):
            raise lh.StoreUnavailable("gone")

        store.renew = silent
        await until(lambda: (shown("leasehold_store_errors_total", verb="renew") or 0) >= 2)
        before = shown("leasehold_renewal_age_seconds")
        await until(lambda: shown("leasehold_renewal_age_seconds") > before)
        store.renew = renew
        await until(lambda: shown("leasehold_renewal_age_seconds") < before)
        processor.stop()
        await running
        assert shown("leasehold_store_errors_total", verb="checkpoint") == 0

    asyncio.run(main())
