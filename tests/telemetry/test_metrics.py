import asyncio
import re
import sys
import threading
from collections import Counter
from inspect import iscoroutinefunction
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.lifecycle import Reason
from leasehold.core.model import Group
from leasehold.errors import BadInput, StoreUnavailable
from leasehold.operations.lag_metrics import LagMetrics
from leasehold.ports import LeaseStore
from leasehold.stores.memory import MemoryStore
from leasehold.telemetry.counted_store import counted
from leasehold.telemetry.cycle_metrics import CycleMetrics
from leasehold.telemetry.metrics import Metrics
from leasehold.telemetry.prometheus import Registry, serve_metrics

GROUP = Group(namespace="homes.local", feed="sensors", name="alerts")
LINE = re.compile(r"([a-z_]+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"(?:,|$)')
ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse(text):
    """The text format as its specification says: {(name, labels): value}."""
    found = {}
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("#"):
            continue
        name, labels, value = LINE.fullmatch(line).groups()
        pairs = frozenset(
            (label, re.sub(r"\\[\\\"n]", lambda match: ESCAPED[match[0]], quoted))
            for label, quoted in LABEL.findall(labels or "")
        )
        assert "".join(f'{m[0]}="{m[1]}",' for m in LABEL.findall(labels or "")) == (
            f"{labels}," if labels else ""
        )
        assert (name, pairs) not in found
        found[name, pairs] = float(value)
    return found


class Reported(Metrics):
    """With the text that a registry makes of it."""

    def __init__(self, registry, group=GROUP, instance="worker-1"):
        super().__init__(group, instance, registry)
        self.registry, self.render = registry, registry.render


def value(metrics, name, **labels):
    """The sum over all series that have these labels; None without any."""
    values = [
        value
        for (found, pairs), value in parse(metrics.render()).items()
        if found == name and set(labels.items()) <= pairs
    ]
    return sum(values) if values else None


@pytest.fixture
def metrics():
    return Reported(Registry())


def test_a_member_that_owns_nothing_says_so(metrics):
    who = {"namespace": "homes.local", "feed": "sensors", "group": "alerts", "member": "worker-1"}
    assert value(metrics, "leasehold_owned_partitions", **who) == 0


def test_handled_events_are_counted_by_partition_and_their_time_by_call(metrics):
    for partition, events, seconds in (("3", 500, 0.25), ("3", 20, 0.002), ("4", 1, 99.0)):
        metrics.handled(partition, events)
        metrics.handler_took(seconds)
    assert value(metrics, "leasehold_events_handled_total", partition="3") == 520
    assert value(metrics, "leasehold_handler_seconds_count") == 3
    assert value(metrics, "leasehold_handler_seconds_sum") == 99.252
    buckets = {"0.001": 0, "0.005": 1, "0.1": 1, "0.5": 2, "60": 2, "+Inf": 3}
    for le, count in buckets.items():
        assert value(metrics, "leasehold_handler_seconds_bucket", le=le) == count


def test_a_time_at_a_bound_is_within_it(metrics):
    metrics.handler_took(0.5)
    assert value(metrics, "leasehold_handler_seconds_bucket", le="0.1") == 0
    assert value(metrics, "leasehold_handler_seconds_bucket", le="0.5") == 1


def test_an_opened_partition_counts_from_zero_so_that_a_first_failure_shows(metrics):
    metrics.opened("7")
    for name in ("events_handled", "retries", "dead_letters"):
        assert value(metrics, f"leasehold_{name}_total", partition="7") == 0
    metrics.retried("7")
    metrics.dead_lettered("7")
    metrics.dead_lettered("7", 3)
    assert value(metrics, "leasehold_retries_total", partition="7") == 1
    assert value(metrics, "leasehold_dead_letters_total", partition="7") == 4


def test_leases_are_counted_as_owned_and_as_moved_by_reason(metrics):
    for partition in ("1", "2", "3"):
        metrics.opened(partition)
    metrics.closed("2", Reason.BALANCED)
    metrics.closed("3", "lost")
    assert value(metrics, "leasehold_owned_partitions") == 1
    moves = {r: value(metrics, "leasehold_lease_moves_total", reason=r) for r in MOVES}
    assert moves == MOVES


MOVES = {"offered": 3, "orphaned": 0, "balanced": 1, "lost": 1, "shutdown": 0, "hung": 0}


def test_every_counter_of_a_member_begins_at_zero_for_every_reason_and_verb(metrics):
    """Or the first one is no increase, and nobody is alerted."""
    for reason in ("offered", "orphaned", *(each.value for each in Reason)):
        assert value(metrics, "leasehold_lease_moves_total", reason=reason) == 0
    verbs = {name for name, each in vars(LeaseStore).items() if iscoroutinefunction(each)}
    for verb in verbs - {"close", "groups"}:
        assert value(metrics, "leasehold_store_errors_total", verb=verb) == 0
    assert value(metrics, "leasehold_handler_seconds_count") == 0
    assert value(metrics, "leasehold_handler_seconds_sum") == 0


def test_the_age_of_renewals_is_told_at_each_look_and_left_out_while_nothing_is_held(metrics):
    ages = [2.5, 7.5, None]
    metrics.watch_renewals(lambda: ages.pop(0))
    shown = [value(metrics, "leasehold_renewal_age_seconds", member="worker-1") for _ in range(3)]
    assert shown == [2.5, 7.5, None]


def cycles_of(metrics):
    group = Group(namespace="homes.local", feed="sensors", name="activity")
    return CycleMetrics(group, "worker-1", metrics.registry, 2.0)


def test_cycles_are_told_with_their_target_and_where_their_time_goes(metrics):
    cycles = cycles_of(metrics)
    assert value(metrics, "leasehold_jobs_cancelled_total", reason="stop") == 0
    parts = {"plan": 0.1, "job": 3.5, "commit": 0.3}
    cycles.ended(events=8000, seconds=4.0, size_bytes=10_000, next_events=4000, parts=parts)
    cycles.cancelled("stop")
    told = {
        name: value(metrics, f"leasehold_{name}", member="worker-1", group="activity")
        for name in ("cycle_target_seconds", "cycle_last_seconds", "cycle_events", "cycle_bytes")
    }
    assert told == {
        "cycle_target_seconds": 2.0,
        "cycle_last_seconds": 4.0,
        "cycle_events": 8000,
        "cycle_bytes": 10_000,
    }
    assert value(metrics, "leasehold_cycle_events_per_second", group="activity") == 2000
    assert value(metrics, "leasehold_cycle_next_events", group="activity") == 4000
    assert value(metrics, "leasehold_cycle_part_seconds_sum", part="job") == 3.5
    assert value(metrics, "leasehold_cycle_seconds_sum", group="activity") == 4.0
    assert value(metrics, "leasehold_jobs_cancelled_total", reason="stop") == 1


def test_the_documentation_lists_these_metrics_and_no_others(metrics):
    cycles_of(metrics)
    page = (Path(__file__).parents[2] / "docs/how-to/observe.md").read_text()
    listed = re.findall(r"^\| `(leasehold_\w+)` \| (\w+) \|", page, re.MULTILINE)
    told = re.findall(r"^# TYPE (\S+) (\S+)$", metrics.render(), re.MULTILINE)
    assert sorted(listed) == sorted(told)


async def failing_store(verb, error):
    store = MemoryStore()

    async def fail(*_):
        raise error

    setattr(store, verb, fail)
    return store


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), asyncio.CancelledError()])
def test_a_request_that_failed_or_was_given_up_is_counted_by_its_verb(metrics, error):
    async def main():
        store = counted(await failing_store("renew", error), metrics.store_failed)
        assert isinstance(store, LeaseStore)
        with pytest.raises(type(error)):
            await store.renew([])
        await store.snapshot(GROUP)
        assert store.requests["snapshot"] == 1

    asyncio.run(main())
    assert value(metrics, "leasehold_store_errors_total") == 1
    assert value(metrics, "leasehold_store_errors_total", verb="renew") == 1


def test_lag_ends_when_the_partition_is_closed(metrics):
    metrics.opened("1")
    metrics.lag("1", 30, 2.5)
    assert value(metrics, "leasehold_lag_events", partition="1") == 30
    assert value(metrics, "leasehold_lag_seconds", partition="1") == 2.5
    metrics.closed("1", "lost")
    assert value(metrics, "leasehold_lag_events") is None
    assert value(metrics, "leasehold_lag_seconds") is None


def test_a_lag_of_unknown_age_is_left_out_rather_than_zero(metrics):
    metrics.lag("1", 30, 2.5)
    metrics.lag("1", 31, None)
    assert value(metrics, "leasehold_lag_events") == 31
    assert value(metrics, "leasehold_lag_seconds") is None


def test_a_watcher_shows_the_lag_of_every_partition_and_of_no_other():
    def estimate(**lags):
        return SimpleNamespace(
            partitions=[
                SimpleNamespace(partition=p, lag_events=events, lag_s=None)
                for p, events in lags.items()
            ]
        )

    registry = Registry()
    watcher = LagMetrics(GROUP, registry)
    watcher.show(estimate(a=3, b=4))
    watcher.show(estimate(b=5, c=6))
    found = {
        dict(labels)["partition"]: value for (_, labels), value in parse(registry.render()).items()
    }
    assert found == {"b": 5, "c": 6}


def test_requests_are_read_when_asked_for_and_a_shared_store_counts_once():
    store, registry, feed = MemoryStore(), Registry(), Counting()
    first = Reported(registry, instance="a")
    second = Reported(registry, instance="b")
    first.watch(store=store, feed=feed)
    second.watch(store=store, feed=object())
    store.requests["renew"] += 4
    feed.requests["read"] += 9
    feed.request_units["read"] += 12.5
    assert value(first, "leasehold_store_requests_total", verb="renew") == 4
    assert value(first, "leasehold_feed_requests_total", verb="read") == 9
    assert value(first, "leasehold_feed_request_units_total", verb="read") == 12.5
    other = MemoryStore()
    other.requests["renew"] += 1
    other.request_units = Counter(renew=10.5)
    second.watch(store=other)
    assert value(first, "leasehold_store_request_units_total", verb="renew") == 10.5
    assert value(first, "leasehold_store_requests_total", verb="renew") == 5


class Counting:
    def __init__(self):
        self.requests, self.request_units = Counter(), Counter()


def test_processors_of_one_process_share_a_registry():
    registry = Registry()
    alerts = Reported(registry)
    activity = Reported(registry, Group(namespace="n", feed="f", name="activity"))
    alerts.handled("0", 1)
    activity.handled("0", 2)
    assert alerts.render() == activity.render()
    assert value(alerts, "leasehold_events_handled_total", group="activity") == 2
    assert alerts.render().count("# TYPE leasehold_events_handled_total counter\n") == 1


def test_every_family_is_explained_before_its_series(metrics):
    metrics.opened("0")
    metrics.handled("0", 1)
    metrics.lag("0", 1, 1)
    kinds = {}
    for line in metrics.render().splitlines():
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert len(line.split()) > 4
        elif line.startswith("# TYPE "):
            assert line.split()[2] == name
            kinds[name] = line.split()[3]
        else:
            assert line.startswith(name)
    assert len(kinds) == 14
    for name, kind in kinds.items():
        assert name.endswith("_total") == (kind == "counter")


def test_the_docs_have_every_name_with_its_kind(metrics):
    cycles_of(metrics)
    page = (Path(__file__).parents[2] / "docs/how-to/observe.md").read_text()
    kinds = re.findall(r"^# TYPE (\w+) (\w+)$", metrics.render(), re.M)
    told = re.findall(r"^\| `(leasehold_\w+)` \| (\w+) \|", page, re.M)
    assert sorted(told) == sorted(kinds)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text('\\"n\n,}{= '))
def test_any_name_survives_as_a_label(partition, reason):
    metrics = Reported(Registry())
    metrics.handled(partition, 1)
    metrics.moved(partition, reason)
    assert value(metrics, "leasehold_events_handled_total", partition=partition) == 1
    assert value(metrics, "leasehold_lease_moves_total", reason=reason) == 1


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (float("inf"), "+Inf"),
        (float("-inf"), "-Inf"),
        (float("nan"), "NaN"),
        (3.0, "3"),
        (0.1, "0.1"),
        (2**60, str(2**60)),
    ],
)
def test_numbers_are_written_as_the_format_wants(number, text):
    registry = Registry()
    registry.gauge("g", "A\nB\\C").set((), number)
    assert registry.render() == f"# HELP g A\\nB\\\\C\n# TYPE g gauge\ng {text}\n"


def test_one_name_cannot_mean_two_things():
    registry = Registry()
    registry.counter("a_total", "A.")
    with pytest.raises(BadInput, match="a_total exists as a counter"):
        registry.gauge("a_total", "A.")


def test_metrics_may_be_read_while_threads_count(metrics):
    done = threading.Event()
    failures = []

    def count(name):
        for number in range(2000):
            metrics.handled(f"{name}-{number % 500}", 1)

    def read():
        while not done.is_set():
            try:
                parse(metrics.render())
            except Exception as error:
                failures.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        counting = [threading.Thread(target=count, args=(name,)) for name in "abcd"]
        reading = threading.Thread(target=read)
        for thread in (*counting, reading):
            thread.start()
        for thread in counting:
            thread.join()
        done.set()
        reading.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures
    assert value(metrics, "leasehold_events_handled_total") == 8000


def test_the_server_gives_out_the_registry_to_this_machine_only(metrics):
    with serve_metrics(metrics.registry, 0) as server:
        assert server.host == "127.0.0.1"
        metrics.handled("0", 5)
        with urlopen(server.url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert answer.read().decode() == metrics.render()
        with pytest.raises(HTTPError, match="404"):
            urlopen(server.url.replace("/metrics", "/etc/passwd"), timeout=10)
        with pytest.raises(BadInput, match=f"port {server.port}.*another port"):
            serve_metrics(metrics.registry, server.port)
    with pytest.raises(OSError, match="refused"):
        urlopen(server.url, timeout=10)


def test_a_port_that_cannot_be_is_refused(metrics):
    with pytest.raises(BadInput, match="port 99999"):
        serve_metrics(metrics.registry, 99999)
