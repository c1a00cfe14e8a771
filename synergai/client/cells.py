"""Cells: gateways that share a database, with workers of their own, and a static map of engines."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from synergai.errors import InvalidInput
from synergai.runtime.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Mapping


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cell.

    Attributes:
        gateways: target of its clients.
        engines: patterns of the engines that it serves, as of a shell.
    """

    gateways: str
    engines: tuple[str, ...] = ("*",)

    def serves(self, engine: str) -> bool:
        """Return whether the name of an engine, or of a version of it, matches a pattern."""
        name = engine.partition("/")[0]
        return any(fnmatchcase(name, pattern) for pattern in self.engines)


def read_cells(path: Path) -> dict[str, Cell]:
    """Read a map: a TOML file with a table ``[NAME]`` for each cell.

    Raises:
        InvalidInput: the file cannot be used.
    """
    cells = read_toml(path, dict[str, Cell], f"cells {path}")
    if not cells:
        raise InvalidInput(f"cells {path} has no cell: write a table [NAME] for each")
    return cells


def cells_of(target: str) -> dict[str, Cell]:
    """Return the cells that a target names: ``@FILE`` all, ``@FILE:NAME`` one.

    An address is a cell without a name.
    """
    if not target.startswith("@"):
        return {"": Cell(target)}
    path, _, name = target[1:].partition(":")
    cells = read_cells(Path(path))
    if not name:
        return cells
    if name not in cells:
        raise InvalidInput(f"{path} has no cell {name!r}, but {', '.join(cells)}")
    return {name: cells[name]}


def cell_of(cells: Mapping[str, Cell], engine: str) -> str:
    """Return the name of the first cell that serves an engine; empty for none."""
    return next((name for name, cell in cells.items() if cell.serves(engine)), "")
