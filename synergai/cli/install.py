"""Options and output of the commands that install and uninstall services."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.runtime.installation import Step

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only print the steps, and which of them would fail.")
]
Programs = Annotated[
    Path | None,
    typer.Option(help="Directory of the synergai program. Default: that of this program."),
]


def print_or_execute(steps: Iterable[Step], done: str, *, dry_run: bool) -> None:
    """Print the steps, even if they could not be executed here, or execute them."""
    from synergai.runtime.installation import execute, find_problem

    if not dry_run:
        execute(list(steps))
        typer.echo(done)
        return
    for step in steps:
        typer.echo(str(step))
        if problem := find_problem(step, Path("/")):
            typer.echo(f"  would fail: {problem}")
