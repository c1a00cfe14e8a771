"""Packing: the most activity that limited resources allow, as a linear programme."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDING: Final = 1e-9


def pack(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the activities of the largest sum for which no resource is used more than once.

    This is the simplex method, with Bland's rule against cycles.

    Args:
        costs: what one unit of each activity takes of each resource, by resource and activity. Each
            activity takes something.
    """
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
    while (gaining := np.flatnonzero(table[-1, :-1] < -_ROUNDING)).size:
        column = gaining[0]
        limits = np.full(resources, np.inf)
        np.divide(table[:-1, -1], table[:-1, column], limits, where=table[:-1, column] > _ROUNDING)
        tight = np.flatnonzero(limits <= limits.min() * (1 + _ROUNDING))
        row = tight[basis[tight].argmin()]
        table[row] /= table[row, column]
        others = np.arange(resources + 1) != row
        table[others] -= np.outer(table[others, column], table[row])
        # Rounding must not leave less than nothing of a resource that is used up.
        np.maximum(table[:-1, -1], 0.0, out=table[:-1, -1])
        basis[row] = column
    found = np.zeros(activities + resources)
    found[basis] = table[:-1, -1]
    amounts: NDArray[np.float64] = found[:activities] / unit
    return amounts
