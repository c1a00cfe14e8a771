"""The document that has the printed results of the seeds beside ours."""

from pathlib import Path
from typing import Final

_DOCS: Final = Path(__file__).parents[1] / "docs"
EXPERIMENTS: Final = _DOCS / "experiments.md"


def printed_cells(seed: str) -> list[list[str]]:
    """Return the cells of a seed's first table, by row."""
    text = (_DOCS / "experiments" / "printed.md").read_text()
    block = text.partition(f"<!-- {seed}: begin -->")[2].partition("\n- ")[0]
    lines = [line for line in block.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
