"""The access table in use, which follows its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.access.table import AccessTable, read_access_table
from gateway.access.watched_files import WatchedFiles

if TYPE_CHECKING:
    from pathlib import Path


class LiveTable(WatchedFiles[AccessTable]):
    """The access table in force."""

    def __init__(self, path: Path) -> None:
        super().__init__("access table", [path], lambda: read_access_table(path))
