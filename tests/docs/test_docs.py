"""What the documentation says is run or compared with the code."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

from leasehold.cli import app
from leasehold.processor.host import Settings
from leasehold.processor.pump import Pace

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [
    pytest.param(text, id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_every_python_snippet_runs(snippet, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
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


@pytest.mark.parametrize("kind", [Settings, Pace])
def test_the_reference_has_every_setting_with_its_default(kind):
    reference = (ROOT / "docs/reference/settings.md").read_text()
    for setting in fields(kind):
        assert f"| `{setting.name}` | {setting.default:g} |" in reference


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
