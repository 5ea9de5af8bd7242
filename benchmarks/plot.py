"""A line plot over time as SVG, readable on light and dark pages and without colour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import chain, pairwise
from math import ceil, floor, log10
from pathlib import Path
from typing import NamedTuple

WIDTH, HEIGHT = 760, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 34
DASHES = ("", "6 4", "2 3", "9 3 2 3", "12 3", "4 2 1 2 1 2")
COLOURS = ("#2a78c2", "#c8641b", "#3a9154", "#8a5bb5", "#b03060", "#5b6b7a")
TEXT_WIDTH = 6.6
"""About that of a letter."""
BESIDE_TITLE = 3
"""More lines than this are named in a row of their own."""


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    """Seconds, and the value there."""
    in_pairs: bool = False
    """Each two points are a piece of their own."""


def steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A value that stays as it is until the next one."""
    later = [((at, held), (at, value)) for (_, held), (at, value) in pairwise(points)]
    return [*points[:1], *chain.from_iterable(later)]


def plot(
    path: Path,
    title: str,
    lines: Sequence[Line],
    *,
    mark: tuple[float, str] | None = None,
    marks: Sequence[tuple[float, str]] = (),
) -> None:
    top = TOP + 18 * (len(lines) > BESIDE_TITLE)
    end_s = max((at for line in lines for at, _ in line.points), default=60.0)
    most = _nice(max((value for line in lines for _, value in line.points), default=1.0))

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / end_s

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - top - BOTTOM) * value / most

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="13" font-weight="600">{escape(title)}</text>',
    ]
    for part in range(5):
        value = most * part / 4
        drawn.append(
            f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#d5dae0"/>'
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#444">'
            f"{_figure(value)}</text>"
        )
    unit_s, unit = (60, "min") if end_s >= 120 else (1, "s")
    step = max(1, ceil(end_s / unit_s / 12))
    for tick in range(0, floor(end_s / unit_s) + 1, step):
        drawn.append(
            f'<text x="{x(unit_s * tick):.1f}" y="{HEIGHT - 12}" text-anchor="middle" '
            f'fill="#444">{tick}{f" {unit}" * (tick == 0)}</text>'
        )
    for place, line in enumerate(lines):
        dash, colour = DASHES[place % len(DASHES)], COLOURS[place % len(COLOURS)]
        pieces = zip(*[iter(line.points)] * 2, strict=True) if line.in_pairs else [line.points]
        way = "".join(
            "M" + "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in piece) for piece in pieces
        )
        drawn.append(
            f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dash}"/>'
        )
        if line.name:
            left, row = WIDTH - RIGHT - 110 * (len(lines) - place), 20
            if len(lines) > BESIDE_TITLE:
                left, row = LEFT + 115 * place, 38
            drawn.append(
                f'<path d="M{left} {row - 4}h22" stroke="{colour}" stroke-width="2" '
                f'stroke-dasharray="{dash}"/>'
                f'<text x="{left + 28}" y="{row}">{escape(line.name)}</text>'
            )
    drawn += _marks([*([] if mark is None else [mark]), *marks], x, top)
    path.write_text("\n".join([*drawn, "</svg>"]) + "\n")


def _marks(
    marks: Sequence[tuple[float, str]], x: Callable[[float], float], top: float
) -> Iterator[str]:
    """Each text in the first row that has room for it, over whatever line it meets."""
    rows: list[float] = []
    texts = []
    for at, text in sorted(marks):
        wide, left, side = TEXT_WIDTH * len(text), x(at) + 6, "start"
        if left + wide > WIDTH - RIGHT:
            left, side = x(at) - 6 - wide, "end"
        row = next((row for row, end in enumerate(rows) if end <= left), len(rows))
        rows[row : row + 1] = [left + wide + 6]
        texts.append(
            f'<text x="{x(at) + (6 if side == "start" else -6):.1f}" y="{top + 12 + 14 * row:g}" '
            f'text-anchor="{side}" fill="#444" stroke="#fff" stroke-width="3" '
            f'paint-order="stroke">{escape(text)}</text>'
        )
        yield (
            f'<path d="M{x(at):.1f} {top}V{HEIGHT - BOTTOM}" stroke="#888" stroke-dasharray="3 3"/>'
        )
    yield from texts


def _figure(value: float) -> str:
    """Millions in short, for the room that there is."""
    return f"{value / 1e6:g} M" if value >= 1e6 else f"{value:,.9g}"


def _nice(value: float) -> float:
    """The next round number, so that quarters of it can be read."""
    if value <= 0:
        return 1.0
    size = 10.0 ** floor(log10(value))
    return float(next(size * step for step in (1, 2, 4, 8, 10) if size * step >= value))
