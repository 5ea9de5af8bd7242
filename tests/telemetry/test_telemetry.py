"""What a processor reports goes to whatever telemetry it is given."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import leasehold as lh
from leasehold.stores.memory import MemoryStore
from leasehold.telemetry.metrics import MEASURES

PAGE = Path(__file__).parents[2] / "docs/how-to/observe.md"


class Recording:
    """Everything that was reported, by the measure's name."""

    def __init__(self):
        self.declared, self.counts = [], Counter()
        self.levels, self.observed, self.watched = {}, defaultdict(list), {}

    def declare(self, measures):
        self.declared += measures

    def count(self, measure, attributes, amount=1):
        assert (measure.kind, len(attributes)) == ("count", len(measure.attributes))
        self.counts[measure.name] += amount

    def level(self, measure, attributes, value):
        assert (measure.kind, len(attributes)) == ("level", len(measure.attributes))
        self.levels[measure.name, attributes] = value

    def observe(self, measure, attributes, *values):
        assert measure.kind == "observation"
        self.observed[measure.name] += values

    def watch(self, measure, key, read):
        self.watched[measure.name] = read


class Failing:
    """Raises whatever it is told."""

    def __getattr__(self, name):
        raise ConnectionError("the collector is gone")


@pytest.fixture
def hub(tmp_path):
    with lh.Hub.create(tmp_path / "hub.db", name="hub", namespace="n", partitions=2) as hub:
        hub.send([lh.EventData(b"{}")] * 10, partition_id=1)
        yield hub


def run(hub, telemetry):
    handled = []
    lh.Processor(
        hub,
        group="alerts",
        store=MemoryStore(),
        on_batch=handled.extend,
        instance="a",
        telemetry=telemetry,
    ).run(until_drained=True)
    return handled


def test_a_processor_reports_to_the_telemetry_that_it_is_given(hub):
    telemetry = Recording()
    assert len(run(hub, telemetry)) == 10
    assert set(telemetry.declared) == set(MEASURES)
    assert telemetry.counts["events_handled"] == 10
    assert telemetry.counts["retries"] == telemetry.counts["store_errors"] == 0
    assert telemetry.levels["owned_partitions", ("n", "hub", "alerts", "a")] == 0
    assert len(telemetry.observed["handler"]) >= 1
    assert telemetry.watched["store_requests"]()["snapshot",] >= 1
    assert telemetry.watched["renewal_age"]() == {}, "it holds no lease any more"


def test_a_telemetry_that_fails_costs_no_event_and_is_logged_once_for_each_verb(hub, caplog):
    assert len(run(hub, Failing())) == 10
    told = [each for each in caplog.messages if "failed in count" in each]
    assert len(told) == 1


class Meter:
    """As much of OpenTelemetry's as is needed: it adds up what its instruments are told."""

    def __init__(self):
        self.told, self.callbacks = Counter(), {}

    def create_counter(self, name, unit):
        return Instrument(self.told, name)

    create_gauge = create_histogram = create_counter

    def create_observable_counter(self, name, callbacks, unit):
        (self.callbacks[name],) = callbacks

    create_observable_gauge = create_observable_counter


class Instrument:
    def __init__(self, told, name):
        self.told, self.name = told, name

    def add(self, amount, attributes):
        assert "group" in attributes
        self.told[self.name] += amount

    set = record = add


def test_the_telemetry_for_opentelemetry_in_the_docs_works(hub):
    (code,) = re.findall(r"```python\n(class OpenTelemetry:.*?)```", PAGE.read_text(), re.S)
    names = {}
    exec(code, names)
    meter = Meter()
    run(hub, names["OpenTelemetry"](meter, lambda value, attributes: (attributes, value)))
    assert meter.told["leasehold.events_handled"] == 10
    assert meter.told["leasehold.handler"] > 0
    requests = {
        each["verb"]: n for each, n in meter.callbacks["leasehold.store_requests.watched"](None)
    }
    assert requests["snapshot"] >= 1
