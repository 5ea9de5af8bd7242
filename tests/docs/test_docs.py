"""What the documentation says is run or compared with the code."""

import contextlib
import inspect
import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

from leasehold import Processor, Retry, every
from leasehold.cli import app
from leasehold.processor.host import Settings
from leasehold.processor.pump import Pace
from leasehold.spark import DeltaSink, SparkProcessor

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    if not re.match(r"# \w+\.py\n", text)  # a file of the tutorial, which has a test of its own
]


@pytest.mark.timeout(700)  # some start Spark
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_every_python_snippet_runs(snippet, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def commands(group, name):
    """Every command that can be run, by what is typed; sub-commands, too."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


COMMANDS = dict(commands(get_command(app), "leasehold"))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_every_command_and_option(name):
    reference = (ROOT / "docs/reference/cli.md").read_text()
    assert f"# `{name}`\n" in reference
    section = reference.split(f"# `{name}`\n")[1].split("\n#")[0]
    for parameter in COMMANDS[name].params:
        for option in parameter.opts:
            if option.startswith("--") and option != "--help":
                assert f"`{option}" in section, f"{option} of {name}"


def shown(default):
    """A default as the reference writes it."""
    if default is inspect.Parameter.empty:
        return "required"
    if default is None:
        return "none"
    if default == ():
        return "none of them"
    if callable(default):
        return f"`{default.__name__}`"
    return f'`"{default}"`' if isinstance(default, str) else f"{default:g}"


@pytest.mark.parametrize(
    "kind", [Settings, Pace, Processor, Retry, every, SparkProcessor, DeltaSink]
)
def test_the_reference_has_every_setting_with_its_default(kind):
    reference = (ROOT / "docs/reference/settings.md").read_text()
    for name, setting in inspect.signature(kind).parameters.items():
        if setting.kind is setting.KEYWORD_ONLY:
            assert f"| `{name}` | {shown(setting.default)} |" in reference


@pytest.mark.parametrize("kind", [Processor, Retry, every, SparkProcessor, DeltaSink])
def test_the_reference_has_no_setting_that_is_not_there(kind):
    reference = (ROOT / "docs/reference/settings.md").read_text()
    section = reference.split(f"## `{kind.__name__}`")[1].split("\n## ")[0]
    known = inspect.signature(kind).parameters.keys() | {each.name for each in fields(Pace)}
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) <= known


def wait_until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_tutorial_goes_as_it_says(tmp_path):
    text = (ROOT / "docs/tutorial.md").read_text()
    for name, script in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.S):
        (tmp_path / name).write_text(script)
    typed = [line for line in text.splitlines() if line.startswith("leasehold ")]
    make_hub, see_leases, see_lag = ([BIN / "leasehold", *line.split()[1:]] for line in typed)

    def run(command):
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def owned():
        """How many partitions each instance has."""
        leases = json.loads(run([*see_leases, "--json"]))
        return Counter(lease["owner"] for lease in leases if lease["live"])

    with contextlib.ExitStack() as stack:

        def start(*arguments):
            out = stack.enter_context((tmp_path / "-".join(arguments)).open("ab"))
            process = subprocess.Popen([sys.executable, *arguments], cwd=tmp_path, stdout=out)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        run(make_hub)
        start("send.py")
        a = start("worker.py", "a")
        wait_until(lambda: b"partition 0, event 0" in (tmp_path / "worker.py-a").read_bytes())
        b = start("worker.py", "b")
        wait_until(lambda: owned() == {"a": 2, "b": 2})
        assert "alerts" in run(see_lag)
        a.send_signal(signal.SIGINT)
        assert a.wait(60) == 0
        wait_until(lambda: owned() == {"b": 4})
        b.send_signal(signal.SIGQUIT)
        start("worker.py", "a")
        wait_until(lambda: owned() == {"a": 4})


def test_the_file_map_names_files_that_exist():
    text = (ROOT / "docs/architecture.md").read_text().split("## File map")[1].split("## ")[0]
    for cell in re.findall(r"^\| (.+?) \|", text, re.M):
        for name in re.findall(r"`([\w/*.]+)`", cell):
            found = [*ROOT.glob(name), *ROOT.glob(f"src/leasehold/**/{name}")]
            assert found or name == "file", f"{name} is in the file map only"


def test_every_module_is_in_the_file_map():
    text = (ROOT / "docs/architecture.md").read_text().split("## File map")[1].split("## Non")[0]
    globs = re.findall(r"`([\w/*.]+)`", text)
    covered = {path for name in globs for path in (ROOT / "src/leasehold").glob(f"**/{name}")}
    for folder in ("core", "processor", "stores", "feeds", "testing"):
        for module in (ROOT / "src/leasehold" / folder).glob("*.py"):
            assert module in covered or module.name == "__init__.py", f"{module.name} is missing"


def test_the_tests_named_as_holding_a_rule_exist():
    text = (ROOT / "docs/architecture.md").read_text().split("## Non-obvious")[1]
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    sources += "\n".join(
        path.read_text() for path in (ROOT / "src/leasehold/testing").glob("check_*.py")
    )
    named = re.findall(r"`\w+: (\w+?)…?(?:\[[\w-]+\])?`", text)
    assert len(named) >= 8
    for name in named:
        assert f"def {name}" in sources, f"{name} is named in the docs only"
