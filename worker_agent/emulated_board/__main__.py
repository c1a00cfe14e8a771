"""``python -m worker_agent.emulated_board KIND DIR`` creates an emulated board."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from worker_agent.emulated_board.board import EmulatedBoard
from worker_agent.emulated_board.kinds import KINDS


def main() -> None:
    """Create an emulated board."""
    parser = argparse.ArgumentParser(
        prog="python -m worker_agent.emulated_board",
        description="Create a directory for SYNERGAI_AGENT_ROOT, which agents treat as a board.",
    )
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("folder", type=Path, help="directory to create; must not exist")
    parser.add_argument("--jetpack", type=int, choices=[4, 5], default=4)
    options = parser.parse_args()
    if options.folder.exists():
        sys.exit(f"error: {options.folder} exists; choose a new directory")
    try:
        EmulatedBoard.create(KINDS[options.kind], options.folder, options.jetpack)
    except OSError as error:
        sys.exit(f"error: cannot write {error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
