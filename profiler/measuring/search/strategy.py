"""Strategies, which choose the next measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from profiler.measuring.search.state import SearchState
    from profiler.measuring.search.trials import Trial


class Strategy(Protocol):
    """Proposes one measurement after another."""

    def propose(self, state: SearchState) -> Trial | None:
        """Return the next measurement; None if none is worth its time.

        The result, or the failure, is in `state` at the next call. The search ends at the first
        one that does not fit the budget.
        """


STRATEGIES: Final = Registry[Strategy](
    "synergai.search",
    {
        "exhaustive": "profiler.measuring.search.strategies.exhaustive:Exhaustive",
        "gp": "profiler.measuring.search.strategies.shared_process:SharedProcessSearch",
    },
)
"""Strategies by name; third parties add theirs under the entry point group ``synergai.search``."""
