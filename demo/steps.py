"""A program of a few steps that says what it does, and how it ends."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console

from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Wide enough for the table also where the output is a file.
console: Final = Console(highlight=False, width=None if sys.stdout.isatty() else 110)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    console.print(f"[bold]{title}[/]")
    began = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - began:.1f} s[/]")


def exit_code_of(steps: Callable[[], None]) -> int:
    """Take all steps; 0 if each was possible, 1 if one was not, 130 if somebody stopped them."""
    try:
        steps()
    except SynergaiError as error:
        console.print(f"[red]error:[/] {error}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    return 0
