"""Plots of measurements: what they say can be read."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from benchmarks.plot import Line, plot, steps


def test_a_plot_shows_every_line_by_name(tmp_path: Path) -> None:
    lines = [Line("median", [(0, 1.0), (60, 3.5)]), Line("p95", [(0, 2.0), (60, 39_000.0)])]
    plot(tmp_path / "a.svg", "seconds < minutes", lines, mark=(30, "a third instance"))
    text = (tmp_path / "a.svg").read_text()
    assert text.count('fill="none"') == 2
    for said in ("median", "p95", "seconds &lt; minutes", "a third instance", ">40,000<"):
        assert said in text


def test_a_plot_shows_what_is_in_pairs_without_lines_between(tmp_path: Path) -> None:
    plot(tmp_path / "a.svg", "cycles", [Line("", [(0, 1), (1, 1), (2, 4), (4, 4)], in_pairs=True)])
    (way,) = re.findall(r'<path d="([^"]*)" fill="none"', (tmp_path / "a.svg").read_text())
    assert (way.count("M"), way.count("L")) == (2, 2)


def test_steps_stay_as_they_are_until_the_next_value() -> None:
    assert steps([(0, 9), (2, 5), (3, 0)]) == [(0, 9), (2, 9), (2, 5), (3, 5), (3, 0)]


def test_texts_of_marks_do_not_cross(tmp_path: Path) -> None:
    marks = [(10.0, "a second joins"), (12.0, "another"), (59.0, "the end"), (35.0, "quick again")]
    plot(tmp_path / "a.svg", "cycles", [Line("", [(0, 1), (60, 1)])], marks=marks)
    found = re.findall(
        r'<text x="([\d.]+)" y="(\d+)" text-anchor="(\w+)" fill="#444" stroke[^>]*>([^<]*)<',
        (tmp_path / "a.svg").read_text(),
    )
    assert len(found) == len(marks)
    places = sorted(
        (int(y), float(x) - wide * (side == "end"), float(x) + wide * (side == "start"))
        for x, y, side, text in found
        for wide in [6.5 * len(text)]
    )
    assert len({y for y, _, _ in places}) > 1
    for (y, _, end), (other_y, start, _) in pairwise(places):
        assert y != other_y or end <= start
