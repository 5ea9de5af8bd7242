"""Requirements are named by number in the code; each has tests, and a page that lists them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/requirements.md"
NUMBER = r"[ECHF]\d+"


def rows():
    """The rest of its row by each number."""
    found = re.findall(rf"^\| ({NUMBER}) \| (.*) \|$", PAGE.read_text(), re.M)
    assert len(found) == len(dict(found)), "a number is listed twice"
    return dict(found)


def test_every_requirement_names_tests_that_exist():
    for number, row in rows().items():
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, f"{number} names no test"
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text(), f"{number}: {path} has no {name}"


def test_numbers_leave_none_out():
    counts = {kind: [n for n in rows() if n.startswith(kind)] for kind in "ECHF"}
    for kind, numbers in counts.items():
        assert numbers == [f"{kind}{n}" for n in range(1, len(numbers) + 1)]


def test_every_number_in_the_code_is_a_requirement():
    known, named = rows(), []
    for folder in ("src", "homes", "benchmarks", "tests", "docs"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".sql", ".md"} and path != Path(__file__):
                text = path.read_text()
                assert not re.search(rf"\bSPEC {NUMBER}", text), f"{path}: say requirement E1"
                named += re.findall(rf"\b[Rr]equirements? ({NUMBER})(?: to ({NUMBER}))?", text)
    assert len(named) >= 10
    assert {number for pair in named for number in pair if number} <= known.keys()
