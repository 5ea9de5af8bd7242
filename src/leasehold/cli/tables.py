"""Tables that lose nothing on a narrow terminal: what does not fit as a table is listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.box import HEAVY_HEAD, SIMPLE_HEAD, Box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table

CUT_CHARS = 24
"""What is left of the longest texts, where they may be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    name: str
    justify: Literal["left", "right"] = "right"
    cut: bool = False
    """Whether its texts may be cut for the table to fit."""


class FittedTable:
    """With lines around if these fit; without, if that fits; else a few lines for each row."""

    def __init__(
        self, *columns: Column, title: str = "", footer: Sequence[str] | None = None
    ) -> None:
        self._columns, self._title, self._footer = columns, title, footer
        self._rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """Cells are markup."""
        self._rows.append(cells)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        unbounded = options.update(max_width=1_000_000)
        for box in (HEAVY_HEAD, SIMPLE_HEAD):
            least = self._table(box, CUT_CHARS)
            if console.measure(least, options=unbounded).maximum <= options.max_width:
                yield self._table(box, None)
                return
        if self._title:
            yield f"[italic]{self._title}[/]"
        for row in [*self._rows, *([self._footer] if self._footer else [])]:
            yield from self._listed(row)

    def _table(self, box: Box, cut_chars: int | None) -> Table:
        table = Table(title=self._title or None, box=box, show_footer=self._footer is not None)
        if box is SIMPLE_HEAD:
            table.pad_edge = table.show_edge = False
            table.padding = (0, 1, 0, 0)
        for number, column in enumerate(self._columns):
            table.add_column(
                column.name,
                self._footer[number] if self._footer else "",
                justify=column.justify,
                no_wrap=True,
                overflow="ellipsis" if column.cut else "fold",
                max_width=cut_chars if column.cut else None,
            )
        for row in self._rows:
            table.add_row(*row)
        return table

    def _listed(self, row: Sequence[str]) -> Iterator[RenderableType]:
        (first, name), *rest = zip(self._columns, row, strict=True)
        yield f"[bold]{first.name} {name}[/]"
        told = (f"{column.name} {cell}" for column, cell in rest if column.name and cell)
        yield Padding(", ".join(told), (0, 0, 0, 2))
