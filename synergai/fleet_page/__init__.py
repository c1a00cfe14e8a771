"""The fleet page: what it shows, and its files."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

SCRIPTS: Final = (
    "model.js",
    "reasons.js",
    "tables.js",
    "timeline.js",
    "control.js",
    "page.js",
)
"""The scripts, in the order in which the page loads them."""


def read_file(name: str) -> str:
    """Return the text of a file of this package; not kept in memory, since it is rarely needed."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
