"""What opens a URL, and what is told where nothing does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import leasehold as lh

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A package that registers a scheme, as pip would leave it."""

    def package(name: str, group: str, scheme: str, code: str = "", point: str = "open") -> None:
        folder = tmp_path / name
        about = folder / f"{name}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{group}]\n{scheme} = {name}:{point}\n")
        (folder / f"{name}.py").write_text(code or "def open(url, **settings): return url\n")
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, name, raising=False)

    return package


def told(call: Callable[..., Any], *given: Any, **settings: Any) -> str:
    with pytest.raises(lh.BadInput) as refused:
        call(*given, **settings)
    return str(refused.value)


OPENERS = {
    "leasehold.feeds": lh.open_feed,
    "leasehold.senders": lh.open_sender,
    "leasehold.stores": lh.open_store,
    "leasehold.dead_letters": lh.open_dead_letters,
    "leasehold.sinks": lh.open_sink,
}


@pytest.mark.parametrize("group", OPENERS)
def test_another_package_opens_the_urls_of_its_scheme(install: Install, group: str) -> None:
    install("one", group, "toy", "def open(url, *, speed=1): return (url, speed)")
    assert OPENERS[group]("toy://here?a=1") == ("toy://here?a=1", 1)
    assert OPENERS[group]("TOY://Here", speed=2) == ("TOY://Here", 2)


@pytest.mark.parametrize("group", OPENERS)
def test_an_unknown_scheme_is_answered_with_what_there_is_and_what_would_do(
    install: Install, group: str
) -> None:
    install("one", group, "toy")
    text = told(OPENERS[group], "pulsar://me:open-sesame@host/topic")
    assert "pulsar://" in text
    assert "Valid are:" in text
    assert "toy://" in text
    assert f"registers the entry point 'pulsar' in the group '{group}'" in text
    assert "sesame" not in text


def test_a_feed_of_this_package_cannot_be_replaced(install: Install, tmp_path: Path) -> None:
    install("one", "leasehold.feeds", "file")
    assert "there is no hub and no container" in told(lh.open_feed, tmp_path / "no.db")


def test_two_packages_for_one_scheme_are_both_named(install: Install) -> None:
    install("one", "leasehold.feeds", "toy")
    install("two", "leasehold.feeds", "toy")
    text = told(lh.open_feed, "toy://here")
    assert "two packages register the feed scheme toy://" in text
    assert "package one" in text
    assert "package two" in text


@pytest.mark.parametrize(
    ("code", "point", "says"),
    [
        ("import no_such_module", "open", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("other = 1", "open", "which cannot be imported: AttributeError"),
        ("open = 1", "open", "is no function; it must take a URL"),
    ],
)
def test_a_package_that_cannot_open_is_named_with_the_reason(
    install: Install, code: str, point: str, says: str
) -> None:
    install("broken", "leasehold.feeds", "toy", code, point)
    text = told(lh.open_feed, "toy://here")
    assert "registered by package broken" in text
    assert says in text


def test_a_package_that_says_itself_what_it_needs_is_believed(install: Install) -> None:
    code = "from leasehold.errors import MissingExtra\nraise MissingExtra('pip install toys')"
    install("needy", "leasehold.feeds", "toy", code)
    assert told(lh.open_feed, "toy://here") == "pip install toys"


def test_a_setting_that_a_feed_does_not_have_is_refused(install: Install) -> None:
    install("plain", "leasehold.feeds", "toy", "def open(url): return url")
    assert "unexpected keyword argument 'mode'" in told(lh.open_feed, "toy://here", "all")


def test_a_file_url_is_the_feed_at_its_absolute_path(tmp_path: Path) -> None:
    path = tmp_path / "an odd name?#%.db"
    lh.Container.create(path, name="alerts", namespace="t", partition_key="/home").close()
    for mode, name in (("latest", "alerts"), ("all", "alerts.all")):
        feed = lh.open_feed(f"{path.as_uri()}?mode={mode}")
        assert feed.name == name
        again = lh.open_feed(feed.address)
        assert (again.name, again.identity) == (name, feed.identity)
        again.close()
        feed.close()
    assert "three slashes" in told(lh.open_feed, "file://data/sensors.db")
    assert "speed is unknown" in told(lh.open_feed, f"{path.as_uri()}?speed=1")
