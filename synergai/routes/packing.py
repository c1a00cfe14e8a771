"""Packing: the most activity that limited resources allow, as a linear programme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDING: Final = 1e-9
_FAST_STEPS: Final = 8
"""Steps per resource after which not that of the greatest gain is taken next, but the first."""


def pack(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the activities of the largest sum for which no resource is used more than once.

    This is the simplex method. After many steps, Bland's rule keeps it from cycles.

    Args:
        costs: what one unit of each activity takes of each resource, by resource and activity. Each
            activity takes something.
    """
    costs = _binding(costs)
    resources, activities = costs.shape
    unit = float(costs.max())
    # Rows are equations, the last one is the objective. The last column is the right-hand side.
    table = np.block(
        [
            [costs / unit, np.eye(resources), np.ones((resources, 1))],
            [-np.ones(activities), np.zeros(resources + 1)],
        ]
    )
    basis = np.arange(activities, activities + resources)
    steps = 0
    while (gaining := np.flatnonzero(table[-1, :-1] < -_ROUNDING)).size:
        fastest = table[-1, gaining].argmin() if steps < _FAST_STEPS * resources else 0
        column, steps = gaining[fastest], steps + 1
        # Each activity takes few of the resources, so that few rows change.
        rows = np.flatnonzero(table[:, column])
        limiting = rows[table[rows, column] > _ROUNDING]
        limits = table[limiting, -1] / table[limiting, column]
        tight = limiting[limits <= limits.min() * (1 + _ROUNDING)]
        row = tight[basis[tight].argmin()]
        table[row] /= table[row, column]
        others = rows[rows != row]
        table[others] -= np.outer(table[others, column], table[row])
        # Rounding must not leave less than nothing of a resource that is used up.
        np.maximum(table[:-1, -1], 0.0, out=table[:-1, -1])
        basis[row] = column
    found = np.zeros(activities + resources)
    found[basis] = table[:-1, -1]
    amounts: NDArray[np.float64] = found[:activities] / unit
    return amounts


def _binding(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the costs without resources that every activity uses no more than another one."""
    most = costs[:, (costs > 0).argmax(axis=1)].argmax(axis=0)
    kept = (most == np.arange(len(costs))) | (costs > costs[most]).any(axis=1)
    binding: NDArray[np.float64] = costs[kept]
    return binding
