"""What a machine must have, and what is said if it does not."""

from __future__ import annotations

import importlib.util
import socket
import tomllib
from pathlib import Path

import pytest

from homes.local.urls import Urls
from homes.supervisor.preflight import EXTRAS, require_extras, require_java, require_master
from leasehold import BadInput


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "JAVA_HOME is"),
        ("""echo 'openjdk version "11.0.2" 2019-01-15' >&2""", "is Java 11; Spark needs 17"),
        ("exit 1", "no Java that tells its version"),
    ],
)
def test_a_java_that_cannot_run_spark_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, said: str
) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    if script is not None:
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    with pytest.raises(BadInput, match=said) as refused:
        require_java()
    assert "openjdk-17-jre-headless" in str(refused.value)


def test_a_spark_master_that_does_not_answer_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        port = master.getsockname()[1]
        require_master("")
        require_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    for url in (f"spark://127.0.0.1:{port}", "spark://127.0.0.1", "spark://127.0.0.1:port"):
        with pytest.raises(BadInput, match=f"no Spark master answers at {url} .*is it running"):
            require_master(url)


def test_no_java_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/no/programs/here")
    with pytest.raises(BadInput, match="none on the PATH"):
        require_java()


@pytest.mark.parametrize("scheme", EXTRAS)
def test_an_extra_that_is_missing_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    module, extra = EXTRAS[scheme]
    wanted = Urls(alerts=f"{scheme}://here/there", feed="kafka://b1:9092/readings")
    require_extras(wanted)
    require_extras(Urls())
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else found(name)
    )
    with pytest.raises(BadInput, match=rf"pip install 'leasehold-homes\[{extra}\]'"):
        require_extras(wanted)


def test_every_extra_of_the_application_is_looked_for() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    known = set(project["project"]["optional-dependencies"])
    assert {extra for _, extra in EXTRAS.values()} == known
