"""What ``pip install`` brings: the library without the application, and the other way round."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
import venv
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from support.processing import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]


def wheel_of(project: Path) -> set[str]:
    """The files of its wheel, without building it."""
    return {each.distribution_path for each in WheelBuilder(str(project)).recurse_included_files()}


def test_the_library_s_wheel_has_the_library_alone() -> None:
    files = wheel_of(ROOT)
    assert {"leasehold/__init__.py", "leasehold/py.typed", "leasehold/cli/__init__.py"} <= files
    assert {name.split("/")[0] for name in files} == {"leasehold"}
    assert not [name for name in files if "homes" in name or "bench" in name]


def test_the_application_s_wheel_has_the_application_with_its_pages() -> None:
    files = wheel_of(ROOT / "homes")
    assert {"homes/cli/__init__.py", "homes/web/pages/home.html", "homes/py.typed"} <= files
    assert {name.split("/")[0] for name in files} == {"homes"}


@pytest.mark.parametrize("package", ["starlette", "uvicorn", "httptools", "uvloop"])
def test_what_only_the_application_needs_is_its_own_dependency(package: str) -> None:
    library = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    application = tomllib.loads((ROOT / "homes/pyproject.toml").read_text())["project"]
    extras = library["optional-dependencies"].values()
    needed = [*library["dependencies"], *(each for extra in extras for each in extra)]
    assert not [each for each in needed if each.startswith(package)]
    assert [each for each in application["dependencies"] if each.startswith(package)]


class Stranger:
    """Somebody with an empty folder, an environment with nothing but the wheel, and the docs."""

    def __init__(self, folder: Path, bin: Path) -> None:
        self.folder, self.bin = folder, bin
        inherited = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        self.environ = {**inherited, "PATH": f"{bin}:/usr/bin:/bin"}

    def save(self, page: str) -> None:
        """The files that a page says to save."""
        text = (ROOT / page).read_text()
        for name, script in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.S):
            (self.folder / name).write_text(script)

    def type(self, line: str) -> str:
        done = subprocess.run(
            shlex.split(line),
            executable=self.bin / line.split(maxsplit=1)[0],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its programs. Nothing of this repository is on its path, and nothing is fetched."""
    folder = tmp_path_factory.mktemp("stranger")
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    venv.create(folder / ".venv", symlinks=True)
    python = folder / ".venv/bin/python"
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
    found = ["--no-index", "--find-links", str(ROOT / ".tools/wheels")]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            *quiet,
            *found,
            wheel,
            "pytest",
        ],
        check=True,
    )
    return python.parent


@pytest.fixture
def stranger(environment: Path, tmp_path: Path) -> Stranger:
    return Stranger(tmp_path, environment)


def test_a_stranger_writes_a_handler_with_its_test(stranger: Stranger) -> None:
    where = stranger.type("python -c 'import leasehold; print(leasehold.__file__)'")
    assert Path(where).is_relative_to(stranger.bin.parent)
    stranger.save("docs/how-to/test-your-handler.md")
    assert "3 passed" in stranger.type("pytest -p no:cacheprovider")


def test_a_stranger_s_tutorial_goes_as_it_says(stranger: Stranger) -> None:
    stranger.save("docs/tutorial.md")
    text = (ROOT / "docs/tutorial.md").read_text()
    typed = [line for line in text.splitlines() if line.startswith("leasehold ")]
    make_hub, see_leases, see_lag = typed

    def owned() -> Counter[str]:
        """How many partitions each instance has."""
        leases = json.loads(stranger.type(f"{see_leases} --json"))
        return Counter(lease["owner"] for lease in leases if lease["live"])

    with contextlib.ExitStack() as stack:
        stranger.type(make_hub)
        start = _starter(stranger, stack)
        start("send.py")
        a = start("worker.py", "a")
        printed = stranger.folder / "worker.py-a"
        wait_until(lambda: b"partition 0, event 0" in printed.read_bytes())
        b = start("worker.py", "b")
        wait_until(lambda: owned() == {"a": 2, "b": 2})
        assert "alerts" in stranger.type(see_lag)
        a.send_signal(signal.SIGINT)
        assert a.wait(PATIENCE_S) == 0
        wait_until(lambda: owned() == {"b": 4})
        b.send_signal(signal.SIGQUIT)
        start("worker.py", "a")
        wait_until(lambda: owned() == {"a": 4})


def _starter(
    stranger: Stranger, stack: contextlib.ExitStack
) -> Callable[..., subprocess.Popen[bytes]]:
    def start(*arguments: str) -> subprocess.Popen[bytes]:
        out = stack.enter_context((stranger.folder / "-".join(arguments)).open("ab"))
        process = subprocess.Popen(
            [stranger.bin / "python", *arguments],
            cwd=stranger.folder,
            env=stranger.environ,
            stdout=out,
            preexec_fn=_heed_quit,  # noqa: PLW1509  # it takes no lock
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        return process

    return start


def _heed_quit() -> None:
    """A shell starts what runs in its background deaf to it, and children inherit that."""
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
