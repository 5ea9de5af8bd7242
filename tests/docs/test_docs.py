"""What the documentation says is run or compared with the code."""

import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import public_names
import pytest
import reference
from typer.main import get_command

import homes.cli
from leasehold import Processor
from leasehold.cli.commands import COMMANDS as LISTED
from leasehold.cli.commands import load
from leasehold.ports import (
    ColumnarFeed,
    CountsRemaining,
    Feed,
    FencesReaders,
    LeaseStore,
    MirrorsCheckpoints,
    Sender,
    TellsEnds,
    TellsHistory,
)
from leasehold.testing.sabotage import Sabotage

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "homes/README.md", "benchmarks/README.md")
    ),
    *sorted(page for name in ("docs", "homes/docs") for page in (ROOT / name).rglob("*.md")),
]
BROKERS = "kafka://b1:9092,b2:9092"
SNIPPETS = [
    pytest.param(
        text,
        id=f"{page.relative_to(ROOT)}:{number}",
        marks=[pytest.mark.servers] if BROKERS in text else [],
    )
    for page in PAGES
    for number, text in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    if not re.match(r"# \w+\.py\n", text)  # a file of the reader's: tests/tools/test_wheel.py
]
TWICE = """
import sys
code = compile(sys.stdin.read(), "snippet", "exec")
for _ in range(2):
    exec(code, {"__name__": "__main__"})
"""
"""In one process, so that Java starts once."""


@pytest.mark.timeout(700)  # some start Spark
@pytest.mark.parametrize("snippet", SNIPPETS)
def test_every_python_snippet_runs_twice_in_one_folder(snippet, tmp_path, request):
    if BROKERS in snippet:
        server = request.getfixturevalue("kafka")
        snippet = snippet.replace(f"{BROKERS}/readings", server.url(server.topic()))
    done = subprocess.run(
        [sys.executable, "-c", TWICE],
        cwd=tmp_path,
        input=snippet,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_quick_start_runs_in_two_processes_at_once(tmp_path):
    snippet = SNIPPETS[0].values[0]
    assert "Hub.open_or_create" in snippet
    running = [
        subprocess.Popen(
            [sys.executable, "-c", snippet],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = [each.communicate(timeout=120) for each in running]
    assert [each.returncode for each in running] == [0, 0], told
    # Of lines that threads print at once, one may end up behind another.
    shown = Counter(home for out, _ in told for home in re.findall(r"H\d{6}", out))
    assert set(shown) == {"H000123", "H000124", "H000125"}
    assert min(shown.values()) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_index_leads_to_every_page():
    index = ROOT / "docs/README.md"
    linked = re.findall(r"\]\(([^)#:]+)\)", index.read_text())
    reached = {(index.parent / target).resolve() for target in linked}
    assert set(PAGES) - {ROOT / "README.md", index} <= reached


def test_the_page_on_feeds_shows_the_feed_that_is_tested():
    page = (ROOT / "docs/how-to/write-a-feed.md").read_text()
    (shown,) = re.findall(r"```python\n# lines_feed.py\n(.*?)```", page, re.S)
    assert shown == (ROOT / "tests/support/lines_feed/lines_feed.py").read_text()


def test_the_page_on_feeds_names_every_part_of_the_ports():
    page = (ROOT / "docs/how-to/write-a-feed.md").read_text()
    ports = (Feed, ColumnarFeed, CountsRemaining, MirrorsCheckpoints, TellsEnds, TellsHistory)
    for port in (*ports, FencesReaders, Sender):
        for part in parts(port):
            assert re.search(rf"`{part}[`(]", page), f"{part} of {port.__name__}"


def test_the_page_on_stores_names_every_verb():
    page = (ROOT / "docs/how-to/write-a-store.md").read_text()
    for part in parts(LeaseStore):
        assert re.search(rf"`{part}[`(]", page), part


def parts(port):
    """What a port has of its own."""
    found = vars(port).keys() | vars(port).get("__annotations__", {}).keys()
    return sorted(name for name in found if not name.startswith("_"))


def test_every_make_target_that_the_docs_name_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        named = re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(), re.M)
        assert set(named) <= targets, page.name


def commands(found, name):
    """Every command that can be run, by what is typed; sub-commands, too."""
    for word, command in found.items():
        if hasattr(command, "commands"):
            yield from commands(command.commands, f"{name} {word}")
        else:
            yield f"{name} {word}", command


COMMANDS = dict(
    [
        *commands({word: load(word) for word in LISTED}, "leasehold"),
        *commands(get_command(homes.cli.app).commands, "homes"),
    ]
)
REFERENCES = {"leasehold": "docs/reference/cli.md", "homes": "homes/docs/cli.md"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_every_command_and_option(name):
    reference = (ROOT / REFERENCES[name.split()[0]]).read_text()
    assert f"# `{name}`\n" in reference
    section = reference.split(f"# `{name}`\n")[1].split("\n#")[0]
    for parameter in COMMANDS[name].params:
        for option in parameter.opts:
            if option.startswith("--") and option != "--help":
                assert f"`{option}" in section, f"{option} of {name}"


def test_the_reference_has_every_way_to_sabotage_a_run():
    reference = (ROOT / "docs/reference/cli.md").read_text().split("## `leasehold verify`")[1]
    for sabotage in set(Sabotage) - {Sabotage.NONE}:
        assert f"`{sabotage.value}`" in reference


@pytest.mark.parametrize("kind", reference.SETTINGS, ids=lambda kind: kind.__name__)
def test_the_reference_has_every_setting_with_its_default_and_no_other(kind):
    page = (ROOT / "docs/reference/settings.md").read_text()
    section = page.split(f"## `{kind.__name__}`")[1].split("\n## ")[0]
    rows = set(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.M))
    settings = {
        (name, reference.shown(setting.default))
        for name, setting in inspect.signature(kind).parameters.items()
        if setting.kind is setting.KEYWORD_ONLY
    }
    assert settings <= rows
    known = {name for name, _ in settings} | inspect.signature(Processor).parameters.keys()
    assert {name for name, _ in rows} <= known


def test_the_reference_of_settings_is_as_the_code_says():
    page = (ROOT / "docs/reference/settings.md").read_text()
    assert reference.settings_page(page) == page, "run: python tools/reference.py"


def test_the_reference_of_public_names_is_as_the_code_says():
    page = (ROOT / "docs/reference/api.md").read_text()
    assert public_names.api_page() == page, "run: python tools/reference.py"


def test_the_reference_says_what_every_public_name_is_for():
    said = {name: public_names.text_of(thing) for _, name, thing in public_names.public()}
    assert len(said) > 70
    assert [name for name, text in said.items() if not text] == []


MAPS = {"docs/architecture.md": "src/leasehold", "homes/README.md": "homes/src/homes"}


@pytest.mark.parametrize("page", MAPS)
def test_the_file_map_names_files_that_exist(page):
    text = (ROOT / page).read_text().split("## File map")[1].split("## ")[0]
    for cell in re.findall(r"^\| (.+?) \|", text, re.M):
        for name in re.findall(r"`([\w/*.]+)`", cell):
            found = [*ROOT.glob(name), *ROOT.glob(f"{MAPS[page]}/**/{name}")]
            assert found or name == "file", f"{name} is in the file map only"


def test_every_module_is_in_the_file_map():
    text = (ROOT / "docs/architecture.md").read_text().split("## File map")[1].split("## Non")[0]
    globs = re.findall(r"`([\w/*.]+)`", text)
    covered = {path for name in globs for path in (ROOT / "src/leasehold").glob(f"**/{name}")}
    for module in (ROOT / "src/leasehold").rglob("*.py"):
        assert module in covered or module.name == "__init__.py", f"{module.name} is missing"


def test_every_module_of_the_application_is_in_its_file_map():
    text = (ROOT / "homes/README.md").read_text().split("## File map")[1]
    package = ROOT / "homes/src/homes"
    for module in package.rglob("*.py"):
        name = module.relative_to(package).as_posix()
        assert f"`{name}`" in text or module.name.startswith("__"), f"{name} is missing"


def test_what_is_not_obvious_is_numbered_without_gaps_or_doubles():
    text = (ROOT / "docs/architecture.md").read_text().split("## Non-obvious")[1]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", text, re.M)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_tests_named_as_holding_a_rule_are_where_it_says():
    text = (ROOT / "docs/architecture.md").read_text().split("## Non-obvious")[1]
    named = re.findall(r"`([\w/]+): (\w+?)…?(?:\[[\w-]+\])?`", text)
    assert len(named) >= 80
    for file, name in named:
        assert any(f"def {name}" in path.read_text() for path in holders(file)), f"{file}: {name}"


def holders(file):
    """A test file by its name; the rules of a conformance suite may lie in several."""
    if file.startswith("check_lease"):
        return (ROOT / "src/leasehold/testing").glob("check_lease*.py")
    if file.startswith("check_"):
        return [ROOT / f"src/leasehold/testing/{file}.py"]
    return [*ROOT.glob(f"tests/**/{file}.py"), *ROOT.glob(f"homes/tests/**/{file}.py")]
