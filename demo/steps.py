"""Progress output and exit code of a program that runs in steps."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console

from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Files have no width: wide enough for the report's table.
console: Final = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a step's title, then its duration."""
    console.print(f"[bold]{title}[/]")
    started = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - started:.1f} s[/]")


def run_steps(steps: Callable[[], None]) -> int:
    """Run `steps` and return the exit code: 0 success, 1 failure, 130 interrupted."""
    try:
        steps()
    except SynergaiError as error:
        console.print(f"[red]error:[/] {error}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    return 0
