"""Compare what a thesis or paper prints with what is computed here.

    python -m benchmarks.seeds thesis --write docs/experiments/printed.md

Every figure is deterministic, but for the CPU times of `splitting`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.report import DocumentBlock
from benchmarks.seeds import pipelines, splitting, thesis, variants
from benchmarks.seeds.rows import PRINTED, comparison, key_chart
from profiler.reports.page import draw_svg

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.seeds.rows import Figures, Group

SEEDS: Final[dict[str, dict[str, Group]]] = {
    "thesis": thesis.GROUPS,
    "variants": variants.GROUPS,
    "pipelines": pipelines.GROUPS,
    "splitting": splitting.GROUPS,
}
TABLES: Final[dict[str, Callable[[], str]]] = {
    "thesis": thesis.cells_table,
    "splitting": splitting.costs_table,
}
"""Further tables."""


def main() -> None:
    """Print the comparison, or write it and its figure to a document."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.seeds",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("seed", choices=SEEDS)
    parser.add_argument("--write", type=Path, metavar="FILE", help="document to update")
    options = parser.parse_args()
    name: str = options.seed
    document = DocumentBlock(options.write, name) if options.write else None
    figures: Figures = {}
    for group in SEEDS[name].values():
        figures |= group()
    text = comparison(PRINTED[name], figures)
    if name in TABLES:
        text += f"\n\n{TABLES[name]()}"
    print(text)
    if document is not None:
        document.write(text)
        image = options.write.parent.parent / "images" / f"printed-{name}.svg"
        image.write_text(draw_svg(key_chart(PRINTED[name], figures), name) + "\n")


if __name__ == "__main__":
    main()
