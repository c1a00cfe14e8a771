"""Progress bars on standard error, leaving standard output to the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def count_progress() -> Progress:
    """Return a bar that counts completed items."""
    # Imported here to keep commands without a bar fast.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    class CountProgress(Progress):
        def stop(self) -> None:
            # In a file, `Progress` ends its last line even if it has printed none.
            if self.tasks or self.console.is_interactive:
                super().stop()
            else:
                self.live.stop()

    return CountProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
