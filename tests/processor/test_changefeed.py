"""``ChangeFeedProcessor`` on a real container and a real SQLite lease store, with short leases."""

import asyncio
import logging
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from support.blocking import result_of

from leasehold.core.model import Group
from leasehold.errors import BadInput
from leasehold.feeds.container import Container
from leasehold.operations.estimator import Estimator
from leasehold.operations.rewind import carry_out, plan
from leasehold.ports import LetterFilter
from leasehold.processor.changefeed import ChangeFeedProcessor
from leasehold.settings import Retry, manual
from leasehold.stores import open_dead_letters, open_store

QUICK = {"lease_ttl_s": 2.0, "balance_interval_s": 0.2, "poll_interval_s": 0.05}
AGAIN = Retry(backoff_s=0.01, backoff_max_s=0.05)


@pytest.fixture
def container(tmp_path):
    with Container.create(
        tmp_path / "alerts.db", name="alerts", namespace="homes.local", partition_key="/home"
    ) as made:
        yield made


@pytest.fixture
def leases(tmp_path):
    return f"sqlite:///{tmp_path / 'leases.db'}"


def ignore(changes):
    pass


def put(container, *numbers, **fields):
    for n in numbers:
        container.upsert({"id": f"a{n}", "home": f"H{n % 7}", "n": n, **fields})


def processor(container, leases, on_changes, name="notify", **settings):
    return ChangeFeedProcessor(
        container,
        name=name,
        on_changes=on_changes,
        store=open_store(leases),
        **{**QUICK, "retry": AGAIN, **settings},
    )


class Running:
    """Processors that run in threads of their own until the block ends."""

    def __init__(self, *processors):
        self.processors = processors
        self.threads = [threading.Thread(target=each.run, daemon=True) for each in processors]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        for each in self.processors:
            each.stop()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


def until(holds, bound_s=30.0):
    end = time.monotonic() + bound_s
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def drained(one):
    """Run it until all is done; what hangs is noticed instead of waited for."""
    thread = threading.Thread(target=one.run, kwargs={"until_drained": True}, daemon=True)
    thread.start()
    thread.join(30)
    stuck = thread.is_alive()
    one.stop()
    thread.join(30)
    assert not stuck, "not all was done"


def group_of(feed):
    return Group(namespace=feed.namespace, feed=feed.name, name="notify")


def leased(leases, container):
    async def look():
        store = open_store(leases)
        try:
            look = await store.snapshot(group_of(container.feed()))
            return {lease.partition for lease in look.leases}
        finally:
            await store.close()

    return asyncio.run(look())


def test_every_insert_and_update_is_delivered_and_the_run_ends_when_all_is_done(container, leases):
    put(container, *range(50))
    seen = []
    processor(container, leases, seen.extend, start="beginning").run(until_drained=True)
    assert sorted(change.document["n"] for change in seen) == list(range(50))
    put(container, 3, 60)
    again = []
    processor(container, leases, again.extend).run(until_drained=True)
    assert sorted(change.document["n"] for change in again) == [3, 60]


def test_by_default_only_what_comes_after_the_first_start_is_seen(container, leases):
    put(container, 1)
    seen = []
    with Running(processor(container, leases, seen.extend)) as running:
        until(lambda: len(running.processors[0].partitions) == 4)
        put(container, 2)
        until(lambda: seen)
    assert [change.document["n"] for change in seen] == [2]


def test_a_time_may_be_the_start(container, leases):
    put(container, 1)
    time.sleep(0.05)
    noon = datetime.now(UTC)
    time.sleep(0.05)
    put(container, 2)
    seen = []
    processor(container, leases, seen.extend, start=noon).run(until_drained=True)
    assert [change.document["n"] for change in seen] == [2]


def test_a_start_that_comes_too_late_is_said_to_have_no_effect(container, leases, caplog):
    put(container, 1)
    processor(container, leases, ignore, start="now").run(until_drained=True)
    seen = []
    with caplog.at_level(logging.WARNING, "leasehold"):
        processor(container, leases, seen.extend, start="beginning").run(until_drained=True)
    assert seen == []
    assert "start='beginning' has no effect" in caplog.text
    assert "leasehold rewind" in caplog.text


def test_a_failing_batch_comes_again_the_same_and_other_ranges_go_on(container, leases):
    put(container, *range(40))
    bad_range = container.range_of("H3")
    calls, good, fail = [], [], [True]

    def on_changes(changes):
        if changes[0].range == bad_range and fail[0]:
            calls.append([change.lsn for change in changes])
            raise RuntimeError("the other side is down")
        good.extend(changes)

    with Running(processor(container, leases, on_changes, start="beginning")):
        until(lambda: len(calls) >= 3)
        others = [n for n in range(40) if container.range_of(f"H{n % 7}") != bad_range]
        until(lambda: len({change.document["n"] for change in good}) == len(others))
        assert all(call == calls[0] for call in calls)
        fail[0] = False
        until(lambda: len({change.document["n"] for change in good}) == 40)


def test_poison_changes_are_dead_lettered_by_configuration(container, leases):
    put(container, *range(30))
    seen, letters = [], open_dead_letters("memory://changefeed-poison")

    def on_changes(changes):
        if any(change.document["n"] == 13 for change in changes):
            raise ValueError("cannot use 13")
        seen.extend(change.document["n"] for change in changes)

    retry = Retry(attempts=2, then="dead-letter", backoff_s=0.01)
    processor(
        container, leases, on_changes, start="beginning", retry=retry, dead_letters=letters
    ).run(until_drained=True)
    assert sorted(seen) == [n for n in range(30) if n != 13]
    (letter,) = asyncio.run(letters.list(LetterFilter(group="notify")))
    assert b'"n":13' in letter.body
    assert letter.reason == "ValueError: cannot use 13"


def test_a_handler_may_dead_letter_by_hand_and_go_on(container, leases):
    put(container, 1, 2)
    letters = open_dead_letters("memory://changefeed-by-hand")

    def on_changes(changes, context):
        for change in changes:
            context.dead_letter(change, "not wanted")

    processor(container, leases, on_changes, start="beginning", dead_letters=letters).run(
        until_drained=True
    )
    assert len(asyncio.run(letters.list(LetterFilter(group="notify")))) == 2


def test_units_are_independent_and_each_told_of_every_change(container, leases):
    put(container, *range(10))
    one, two = [], []
    processor(container, leases, one.extend, "notify", start="beginning").run(until_drained=True)
    processor(container, leases, two.extend, "archive", start="beginning").run(until_drained=True)
    assert len(one) == len(two) == 10


def test_ranges_are_dealt_out_equally_and_spare_instances_stand_by(container, leases):
    six = [processor(container, leases, ignore, instance=f"n{n}") for n in range(6)]
    with Running(*six):
        until(lambda: sorted(len(each.partitions) for each in six) == [0, 0, 1, 1, 1, 1])


def test_a_split_while_running_loses_nothing_and_hands_on_the_progress(container, leases):
    seen = []
    steady = {"start": "beginning", "lease_ttl_s": 60.0}  # nothing expires, however slow it goes
    with Running(
        *(processor(container, leases, seen.extend, **steady) for _ in range(2))
    ) as running:
        until(lambda: sum(len(each.partitions) for each in running.processors) == 4)
        for n in range(60):
            put(container, n)
            if n in (20, 40):
                container.split(container.range_of(f"H{n % 7}"))
        until(lambda: len({change.document["n"] for change in seen}) == 60)
        until(lambda: sum(len(each.partitions) for each in running.processors) == 6)
    assert len(seen) == 60


def test_a_split_while_nobody_runs_loses_nothing(container, leases):
    put(container, *range(20))
    first = []
    processor(container, leases, first.extend, start="beginning").run(until_drained=True)
    put(container, *range(20, 40))
    for each in list(container.ranges()):
        container.split(each.id)
    put(container, *range(40, 60))
    second = []
    processor(container, leases, second.extend).run(until_drained=True)
    processor(container, leases, second.extend).run(until_drained=True)
    assert sorted(change.document["n"] for change in second) == list(range(20, 60))


def test_ranges_split_again_and_again_while_nobody_ran_are_drained_in_one_run(container, leases):
    put(container, *range(20))
    processor(container, leases, ignore, start="beginning").run(until_drained=True)
    for first in (20, 40, 60):
        put(container, *range(first, first + 20))
        before = len(result_of(container.feed().partitions()))
        for each in result_of(container.feed().partitions()):
            with suppress(BadInput):  # a single key cannot be split
                container.split(each.id)
        assert len(result_of(container.feed().partitions())) > before
    put(container, *range(80, 100))
    seen = []
    drained(processor(container, leases, seen.extend))
    assert sorted(change.document["n"] for change in seen) == list(range(20, 100))
    assert leased(leases, container) == {
        each.id for each in result_of(container.feed().partitions())
    }


def test_a_range_that_is_split_before_its_lease_is_made_is_drained_through_its_children(
    container, leases, monkeypatch
):
    put(container, *range(20))
    feed = container.feed()
    partitions, split = feed.partitions, []

    async def split_behind_the_first_look():
        known = await partitions()
        if not split:  # others look at the same time
            split.append(known[0].id)
            container.split(known[0].id)
        return known

    monkeypatch.setattr(feed, "partitions", split_behind_the_first_look)
    seen = []
    drained(processor(feed, leases, seen.extend, start="beginning"))
    assert sorted(change.document["n"] for change in seen) == list(range(20))


@pytest.mark.parametrize("mode", ["latest", "all"])
def test_a_range_that_ends_with_deletes_is_drained_like_any_other(container, leases, mode):
    put(container, *range(20))
    drained(processor(container, leases, ignore, start="beginning", mode=mode))
    container.delete("a3", "H3")
    seen = []
    drained(processor(container, leases, seen.extend, mode=mode))
    assert len(seen) == (1 if mode == "all" else 0)


def test_what_is_deleted_before_it_was_read_keeps_nobody_waiting(container, leases):
    put(container, 3)
    drained(processor(container, leases, ignore, start="beginning"))
    put(container, 10)  # the same range, held up in the handler
    go_on = threading.Event()

    def on_changes(changes):
        go_on.wait(30)

    slow = processor(container, leases, on_changes, max_items=1)
    put(container, 17, 24)
    with Running(slow):  # which does not save by itself when it is idle
        until(lambda: slow.partitions)
        container.delete("a17", "H3")
        container.delete("a24", "H3")
        other = processor(container, leases, ignore, lease_ttl_s=60.0)
        go_on.set()
        drained(other)


def test_a_split_range_that_ended_with_deletes_hands_on_and_nothing_remains(container, leases):
    put(container, *range(20))
    drained(processor(container, leases, ignore, start="beginning"))
    container.delete("a3", "H3")
    container.split(container.range_of("H3"))
    container.delete("a10", "H3")
    drained(processor(container, leases, ignore))
    look = Estimator(container.feed(), group="notify", store=open_store(leases)).lag()
    assert {p.partition for p in look.partitions} == {
        p.id for p in result_of(container.feed().partitions())
    }
    assert [(p.lag_events, p.lag_s, p.astray) for p in look.partitions] == [(0, 0.0, None)] * 5
    assert all(p.checkpoint == p.end for p in look.partitions)


def test_after_deletes_were_passed_over_a_rewind_still_delivers_what_is_there(container, leases):
    put(container, 3, 10, 17)
    drained(processor(container, leases, ignore, start="beginning"))
    container.delete("a17", "H3")
    drained(processor(container, leases, ignore))
    feed, store = container.feed(), open_store(leases)

    async def back():
        moves = await plan(feed, store, group_of(feed), "earliest")
        await carry_out(store, moves)
        await store.close()

    asyncio.run(back())
    seen = []
    drained(processor(container, leases, seen.extend))
    assert [change.document["n"] for change in seen] == [3, 10]


def test_a_range_that_was_split_before_the_unit_came_is_read_from_its_children(container, leases):
    put(container, *range(20))
    container.split(container.range_of("H1"))
    put(container, *range(20, 30))
    seen = []
    processor(container, leases, seen.extend, start="beginning").run(until_drained=True)
    assert sorted(change.document["n"] for change in seen) == list(range(30))


def test_all_versions_and_deletes_are_delivered_in_order(container, leases):
    container.insert({"id": "x", "home": "H1", "n": 1})
    container.upsert({"id": "x", "home": "H1", "n": 2})
    container.delete("x", "H1")
    seen = []
    processor(container, leases, seen.extend, start="beginning", mode="all").run(until_drained=True)
    assert [change.operation for change in seen] == ["insert", "replace", "delete"]
    assert seen[1].previous["n"] == 1
    assert seen[2].document is None


def test_with_manual_checkpoints_only_what_the_handler_saved_is_done(container, leases):
    put(container, *range(5))
    handled = []

    def on_changes(changes, context):
        if changes[0].document["n"] != 4:
            context.checkpoint(changes[-1])
        handled.extend(changes)

    one = processor(container, leases, on_changes, start="beginning", checkpoint=manual())
    with Running(one):
        until(lambda: len(handled) == 5)
    seen = []
    processor(container, leases, seen.extend).run(until_drained=True)
    assert len(seen) < 5


def test_leases_are_announced_when_they_come_and_go(container, leases):
    told = []
    processor(
        container,
        leases,
        ignore,
        on_lease_acquired=lambda context: told.append(("acquired", context.partition)),
        on_lease_released=lambda reason, context: told.append((reason, context.partition)),
    ).run(until_drained=True)
    ranges = sorted(each.id for each in container.ranges())
    assert sorted(p for what, p in told if what == "acquired") == ranges
    assert sorted(p for what, p in told if what == "shutdown") == ranges


@pytest.mark.parametrize("name", ["notify", "Ünit 7/ä", "a'b\"c;--", "x" * 200])
def test_names_with_odd_characters_work(container, leases, name):
    put(container, 1)
    seen = []
    processor(container, leases, seen.extend, name, instance=name, start="beginning").run(
        until_drained=True
    )
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"start": "yesterday"}, '"now", "beginning", a time'),
        ({"start": "sequence:5"}, '"now", "beginning", a time'),
        ({"start": datetime.now() - timedelta(days=1)}, "time zone"),
        ({"mode": "some"}, 'mode must be "latest" or "all"'),
        ({"max_items": 0}, "max_items must be 1 or more"),
        ({"poll_interval_s": 0}, "poll_interval_s"),
        ({"name": " "}, "name must be"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(container, leases, settings, says):
    with pytest.raises(BadInput, match=says):
        processor(container, leases, ignore, **settings)


def test_the_lag_among_the_metrics_counts_changes_not_lsns(container, leases):
    put(container, *range(20))
    put(container, *range(20))  # each document changed again: 40 LSNs, 20 changes remain
    go_on = threading.Event()

    def on_changes(changes):
        go_on.wait(30)

    one = processor(container, leases, on_changes, start="beginning", max_items=1)

    def lag():
        lines = one.telemetry.render().splitlines()
        return sum(float(x.split()[-1]) for x in lines if x.startswith("leasehold_lag_events{"))

    with Running(one):
        until(lambda: lag() == 20)
        go_on.set()
        until(lambda: lag() == 0)
