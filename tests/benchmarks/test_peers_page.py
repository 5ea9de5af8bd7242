"""The page is filled from one run, and keeps what people wrote around it."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.peers import bench, contenders, page
from benchmarks.peers.scenes import GroupChange, Killed, Planned


def change(members: int, moves: int) -> GroupChange:
    return GroupChange(
        members=members,
        settled_s=3.2,
        pause_s=1.24,
        paused=5,
        twice=7,
        moves=moves,
        fewest=4,
        spread=1,
        waiting=[(0.0, 0), (1.0, 5), (2.0, 0)],
    )


def found(compared: list[contenders.Contender]) -> bench.Found:
    result = bench.Found(sizes=bench.Sizes())
    for place, each in enumerate(compared):
        result.planned[each.name] = Planned(
            changes=[change(members, 10 + place) for members in (3, 2, 5, 3)],
            delays_s=[0.001 * n for n in range(101)],
            never=0,
        )
        result.killed[each.name] = Killed(
            waits_s=[8.0, 9.0, 13.0], twice=[10, 20, 60], never=place, waiting=[(0.0, 0), (9.0, 5)]
        )
        result.events_per_cpu_s[each.name] = 123_456.7
    return result


def test_every_contender_and_figure_is_on_the_page(tmp_path: Path) -> None:
    compared = contenders.contenders({"SQLite": "sqlite:///a.db", "PostgreSQL": "postgresql://b"})
    readme, path = tmp_path / "README.md", tmp_path / "docs" / "peers.md"
    path.parent.mkdir()
    for each in (readme, path):
        each.write_text(f"before\n\n{page.BEGIN}\nold\n{page.END}\n\nafter\n")
    for _ in range(2):
        page.write(path.parent, compared, found(compared))
    for each in compared:
        line = f"| {each.name} | 9.0 s | 1.2 s (5) | 1.2 s (5) | 95 ms | 123,457 |"
        assert line in readme.read_text()
    text = path.read_text()
    assert text.startswith(f"before\n\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\n\nafter\n")
    assert "\nold\n" not in text
    assert text.count(page.BEGIN) == text.count(page.END) == 1
    for place, each in enumerate(compared):
        assert f"| {each.name} | 9.0 s (13.0 s) | 30 (10 to 60) | 3 | {place} |" in text
        assert f"| {each.name} | 1.2 s | 5 | 7 | 1.2 s | 5 | 7 |" in text
        assert f"| {each.name} | 3.2 s | {10 + place} (4) | 1 | 1.2 s | 7 |" in text
        assert f"| {each.name} | 50 ms | 95 ms |" in text
    assert "| 123,457 |" in text
    for name in ("kill", "join", "leave"):
        drawn = (path.parent / f"peers-{name}.svg").read_text()
        assert ">quixstreams</text>" in drawn
        assert drawn.count('fill="none"') == len(compared) - 1, "PostgreSQL is as SQLite"


def test_versions_are_those_of_the_pinned_packages() -> None:
    told = contenders.versions(contenders.QUIXSTREAMS)
    pinned = (Path(contenders.__file__).parent / "packages" / "quixstreams.txt").read_text()
    library, client = (each.strip().replace(" ", "==") for each in told.split(","))
    assert library in pinned.split()
    assert client in pinned.split()


def test_the_readme_repeats_figures_of_the_page() -> None:
    root = Path(__file__).parents[2]
    within = re.compile(f"{page.BEGIN}\\n(.*?){page.END}", re.S)
    short, whole = (
        within.findall((root / name).read_text())[0] for name in ("README.md", "docs/peers.md")
    )
    told = re.findall(r"\d[\d,.]* m?s\b|\d+,\d+", short)
    assert len(told) > 20
    assert [each for each in told if each not in whole] == []
