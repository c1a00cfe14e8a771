"""Everything, with full runs: the time that other strategies are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiler.measuring.search.space import Trial

if TYPE_CHECKING:
    from profiler.measuring.search.state import SearchState


class Exhaustive:
    """Measures all points with full runs, power mode by power mode."""

    def propose(self, state: SearchState) -> Trial | None:
        """Return the next point of the mode in force, or of the next mode."""
        left = state.by_mode(state.open())
        return Trial(left[0], full=True) if left else None
