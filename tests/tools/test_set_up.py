from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import set_up

VECTOR = "--add-modules=jdk.incubator.vector"


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_the_java_wrapper_drops_the_one_flag_and_passes_on_the_rest_as_it_was(
    tmp_path: Path,
) -> None:
    java = program(tmp_path / "a folder" / "java", """printf '%s\\n' "$@" """)
    wrapper = tmp_path / "bin" / "java"
    set_up.write_java_wrapper(wrapper, java)
    given = ["-Xmx1g", VECTOR, "a b", '"quoted"', "", "$HOME", "--add-modules=other", VECTOR, "-x"]
    done = subprocess.run([wrapper, *given], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == [word for word in given if word != VECTOR]


@pytest.mark.parametrize(
    ("printed", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "26-ea" 2026-03-17', 26),
        ('java version "1.8.0_402"', 8),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "21.0.8"', 21),
        ("no java here", 0),
    ],
)
def test_a_java_is_judged_by_the_version_it_prints(
    tmp_path: Path, printed: str, major: int
) -> None:
    java = program(tmp_path / "java", f"cat >&2 <<'END'\n{printed}\nEND")
    assert set_up.java_version(java) == major


def test_a_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert set_up.java_version(tmp_path / "missing") == 0
    assert set_up.java_version(program(tmp_path / "java", "exit 1")) == 0


def test_the_newest_complete_postgres_is_taken(tmp_path: Path) -> None:
    def installed(name: str, version: str, *programs: str) -> Path:
        for each in programs:
            program(tmp_path / name / each, f"echo '{each} (PostgreSQL) {version}'")
        return tmp_path / name

    old = installed("9", "9.6.24", "postgres", "initdb")
    new = installed("18", "18.4 (Debian 18.4-1)", "postgres", "initdb")
    client_only = installed("19", "19beta1", "initdb")
    assert set_up.newest_postgres([old, new, client_only]) == new
    assert set_up.newest_postgres([client_only]) is None


def test_an_interrupted_install_from_npm_does_not_count(tmp_path: Path) -> None:
    modules = tmp_path / "node_modules"
    (modules / "azurite").mkdir(parents=True)
    assert set_up.node_package_version(tmp_path, "azurite") == ""
    (modules / ".package-lock.json").write_text(
        '{"packages": {"node_modules/azurite": {"version": "3.35.0"}}}'
    )
    assert set_up.node_package_version(tmp_path, "azurite") == "3.35.0"


def test_a_browser_without_its_driver_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    program(tmp_path / "chromium", "echo Chromium 140.0")
    program(tmp_path / "chromedriver", "exit 1")
    assert set_up.find_chromium() == ""
    program(tmp_path / "chromedriver", "echo ChromeDriver 140.0")
    assert set_up.find_chromium() == "Chromium 140.0"


def test_a_failed_step_says_what_it_ran_and_what_that_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "TOOLS", tmp_path)
    monkeypatch.setattr(set_up, "LOG", tmp_path / "log")
    broken = program(tmp_path / "broken", "echo the reason; exit 3")
    with pytest.raises(set_up.StepFailed, match=r"broken ended with 3:\nthe reason"):
        set_up.run([broken])
    assert "the reason" in (tmp_path / "log").read_text()


def test_what_is_fetched_is_tried_again_when_it_does_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_up, "TOOLS", tmp_path)
    monkeypatch.setattr(set_up, "LOG", tmp_path / "log")
    monkeypatch.setattr(set_up, "FETCH_PAUSES_S", (0.0, 0.0))
    tries = tmp_path / "tries"
    third = program(tmp_path / "third", f'echo try >> {tries}; [ "$(wc -l < {tries})" = 3 ]')
    set_up.fetch([third])
    assert len(tries.read_text().splitlines()) == 3
    with pytest.raises(set_up.StepFailed):  # from now on it never comes
        set_up.fetch([third])
