"""Every setting is said once, is typed, can be set, and is refused by name if it cannot work."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from leasehold import (
    BadInput,
    ChangeFeedProcessor,
    Container,
    Hub,
    Processor,
    Registry,
    Retry,
    every,
    open_dead_letters,
)
from leasehold.clock import SystemClock
from leasehold.core.balance import by_weight
from leasehold.processor import keywords
from leasehold.settings import PACE, TIMING, JobSettings, LagSettings, Pace, Timing
from leasehold.spark import SparkProcessor
from leasehold.stores.memory import MemoryStore

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src/leasehold"
ASK_ALL = """
import asyncio, inspect, sys
from leasehold import ChangeFeedProcessor, Checkpoint, Group, Lease, Member, Processor, open_store
from leasehold.processor.host import Host
from leasehold.stores.azure_blob.layout import Claim, read_claim
from leasehold.testing.lease_scenes import member
from leasehold.testing.simulate import Simulation

group = Group(namespace="n", feed="f", name="g")
start = Checkpoint(next_sequence=0)


async def stored():
    store = open_store("sqlite:///leases.db")
    await store.create(group, {"0": start})
    (lease,) = (await store.snapshot(group)).leases
    await store.close()
    return lease.ttl_s


def default(kind, name):
    return inspect.signature(kind).parameters[name].default


print(
    default(Processor, "lease_ttl_s"),
    default(Host, "settings").lease_ttl_s,
    Lease(group=group, partition="0", checkpoint=start).ttl_s,
    Member(instance="a", incarnation="1").ttl_s,
    asyncio.run(stored()),
    Claim().ttl_s,
    member("a").ttl_s,
    Simulation(1).settings.lease_ttl_s,
)
"""


def test_another_default_time_to_live_is_a_change_in_one_place(tmp_path: Path) -> None:
    copy = tmp_path / "leasehold"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / "settings.py").read_text()
    assert text.count("lease_ttl_s: float = 10.0") == 1
    (copy / "settings.py").write_text(
        text.replace("lease_ttl_s: float = 10.0", "lease_ttl_s: float = 17.0")
    )
    done = subprocess.run(
        [sys.executable, "-c", ASK_ALL],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"17.0"}, done.stdout


def defaults(tree: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Every parameter and field that has a default, with it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.value
        if isinstance(node, ast.arguments):
            plain = [*node.posonlyargs, *node.args]
            yield from zip(
                (arg.arg for arg in reversed(plain)), reversed(node.defaults), strict=False
            )
            yield from zip((arg.arg for arg in node.kwonlyargs), node.kw_defaults, strict=True)


def numbers_for_ttl(source: str) -> list[str]:
    return [
        f"{name} = {ast.unparse(value)}"
        for name, value in defaults(ast.parse(source))
        if name in ("ttl_s", "lease_ttl_s")
        and isinstance(value, ast.Constant)
        and value.value is not None
    ]


def test_no_other_module_has_a_number_as_default_time_to_live() -> None:
    found = {
        str(path.relative_to(SOURCES)): numbers
        for path in SOURCES.rglob("*.py")
        if (numbers := numbers_for_ttl(path.read_text()))
    }
    assert found == {"settings.py": ["lease_ttl_s = 10.0"]}
    for sql in SOURCES.rglob("*.sql"):
        assert not re.search(r"\bttl_s\b.*\bDEFAULT\s+[1-9]", sql.read_text()), sql.name


@pytest.mark.parametrize(
    "source", ["def f(ttl_s: float = 9.0): ...", "def f(*, ttl_s=9): ...", "lease_ttl_s: int = 9"]
)
def test_a_number_as_default_time_to_live_is_noticed(source: str) -> None:
    assert numbers_for_ttl(source)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub.create(tmp_path / "hub.db", name="sensors", namespace="homes.local", partitions=2)


def handle(events: Any) -> None: ...


def given(tmp_path: Path) -> dict[str, Any]:
    """Each keyword that all processors take, at a value that is not its default."""
    return {
        "checkpoint": every(events=7),
        "retry": Retry(attempts=3, then="dead-letter"),
        "lease_ttl_s": 21.0,
        "balance_interval_s": 2.0,
        "shed_timeout_s": 22.0,
        "request_timeout_s": 7.0,
        "drain_timeout_s": 23.0,
        "max_events": 24,
        "max_bytes": 25,
        "read_ahead": False,
        "poll_interval_s": 0.25,
        "read_timeout_s": 26.0,
        "retry_s": 0.125,
        "retry_max_s": 27.0,
        "handler_timeout_s": 28.0,
        "on_position_gone": "fail",
        "assign": by_weight(),
        "clock": SystemClock(),
        "telemetry": Registry(),
        "dead_letters": open_dead_letters(f"sqlite:///{tmp_path}/dead.db"),
        "instance": "worker-1",
        "start": "latest",
    }


def taken(processor: Processor) -> dict[str, Any]:
    """What a processor works with."""
    host = processor._host
    return {
        **asdict(host.settings),
        **asdict(processor._pace),
        "checkpoint": processor._policy,
        "retry": processor._retry,
        "assign": host._assign,
        "clock": processor._clock,
        "telemetry": processor.telemetry,
        "dead_letters": processor._dead_letters,
        "instance": processor.instance,
    }


def rows(section: str) -> set[str]:
    """The settings that the reference has for a class."""
    page = (ROOT / "docs/reference/settings.md").read_text()
    return set(
        re.findall(r"^\| `(\w+)` \|", page.split(f"## `{section}`")[1].split("\n## ")[0], re.M)
    )


HANDLERS = {"on_event", "on_batch", "on_error", "on_partition_open", "on_partition_close"}


def test_every_setting_of_a_processor_in_the_reference_can_be_set(hub: Hub, tmp_path: Path) -> None:
    values = given(tmp_path)
    # Only a feed with tools of its own can be mirrored to: tests/feeds/kafka/test_processing.py
    assert rows("Processor") == values.keys() | {"group", "store", "mirror_offsets"} | HANDLERS
    processor = Processor(hub, group="g", store=MemoryStore(), on_batch=handle, **values)
    found = taken(processor)
    for name in values.keys() - {"start"}:
        assert found[name] == values[name], name
    defaults = inspect.signature(Processor).parameters
    assert not [name for name, value in values.items() if value == defaults[name].default]


def test_a_change_feed_processor_takes_them_too(tmp_path: Path) -> None:
    container = Container.create(
        tmp_path / "alerts.db", name="alerts", namespace="homes.local", partition_key="/home"
    )
    names = get_type_hints(keywords.ChangeFeedKeywords).keys()
    values = {name: value for name, value in given(tmp_path).items() if name in names}
    assert values.keys() == names
    processor = ChangeFeedProcessor(
        container, name="notify", on_changes=handle, store=MemoryStore(), max_items=9, **values
    )
    found = taken(processor)
    assert found["max_events"] == 9
    for name, value in values.items():
        assert found[name] == value, name


@pytest.mark.parametrize(
    ("kind", "passed"),
    [
        (ChangeFeedProcessor, keywords.ChangeFeedKeywords),
        (SparkProcessor, keywords.SparkKeywords),
    ],
)
def test_what_editors_know_is_what_a_processor_takes(kind: type, passed: type) -> None:
    """Types that are written twice, compared: as ``Processor`` says them, and as they are passed
    on."""
    theirs = get_type_hints(passed)
    processor = inspect.signature(Processor, eval_str=True).parameters
    assert {name: processor[name].annotation for name in theirs} == theirs
    own = inspect.signature(kind).parameters.keys()
    assert not own & theirs.keys()


def test_a_processor_of_another_kind_leaves_out_only_what_it_says_in_its_own_words() -> None:
    settings = inspect.signature(Processor).parameters.keys() - {"feed", "settings"}
    for kind, passed, replaced in (
        (
            ChangeFeedProcessor,
            keywords.ChangeFeedKeywords,
            {"group", "max_events", "on_event", "on_batch", "on_partition_open"}
            | {"on_partition_close", "mirror_offsets"},
        ),
        (SparkProcessor, keywords.SparkKeywords, {"on_event", "read_ahead"}),
    ):
        known = inspect.signature(kind).parameters.keys() | get_type_hints(passed).keys()
        assert settings - known == replaced, kind


def test_the_fields_of_the_settings_are_keywords_of_the_processors() -> None:
    for settings, kind in ((Timing, Processor), (Pace, Processor), (JobSettings, SparkProcessor)):
        parameters = inspect.signature(kind).parameters
        for field in fields(settings):
            assert parameters[field.name].default == field.default, field.name


@pytest.mark.parametrize("settings", [TIMING, PACE, JobSettings(), LagSettings()])
def test_the_defaults_are_fit_to_use(settings: Any) -> None:
    settings.check()


NOT_SECONDS = (0, -1, float("nan"), float("inf"), "5", None)
NOT_WHOLE = (-1, 1.5, True, "9", None)
REFUSED = {
    (Timing, "lease_ttl_s"): NOT_SECONDS,
    (Timing, "balance_interval_s"): NOT_SECONDS,
    (Timing, "shed_timeout_s"): NOT_SECONDS,
    (Timing, "request_timeout_s"): NOT_SECONDS,
    (Timing, "drain_timeout_s"): NOT_SECONDS[1:],
    (Pace, "max_events"): (0, *NOT_WHOLE),
    (Pace, "max_bytes"): NOT_WHOLE,
    (Pace, "read_ahead"): (1, "no", None),
    (Pace, "poll_interval_s"): NOT_SECONDS,
    (Pace, "read_timeout_s"): NOT_SECONDS,
    (Pace, "request_timeout_s"): NOT_SECONDS,
    (Pace, "retry_s"): NOT_SECONDS,
    (Pace, "retry_max_s"): (*NOT_SECONDS, PACE.retry_s / 2),
    (Pace, "handler_timeout_s"): NOT_SECONDS[:-1],
    (Pace, "on_position_gone"): ("latest", None),
    (JobSettings, "tasks"): (0, *NOT_WHOLE[:-1]),
    (JobSettings, "cycle_s"): NOT_SECONDS,
    (JobSettings, "cycle_bytes"): (0, *NOT_WHOLE[:-1]),
    (JobSettings, "overlap"): (None, 1, "yes"),
    (JobSettings, "gather_s"): NOT_SECONDS[1:],
    (JobSettings, "stall_s"): NOT_SECONDS,
    (LagSettings, "stuck_after_s"): NOT_SECONDS,
    (LagSettings, "rate_over_s"): NOT_SECONDS,
}


def test_each_setting_has_values_that_are_refused() -> None:
    kinds = (Timing, Pace, JobSettings, LagSettings)
    assert REFUSED.keys() == {(kind, field.name) for kind in kinds for field in fields(kind)}


@pytest.mark.parametrize(
    ("kind", "name", "bad"), [(*setting, bad) for setting, all in REFUSED.items() for bad in all]
)
def test_what_cannot_work_is_refused_by_name(kind: type, name: str, bad: object) -> None:
    with pytest.raises(BadInput, match=name):
        kind(**{name: bad}).check()
