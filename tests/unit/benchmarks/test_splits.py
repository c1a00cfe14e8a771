from itertools import product

import pytest

from benchmarks.splits import FORMS, cell, problem_of
from profiler.simulator.pipelines.measured_chains import measured_chains
from synergai.domain import EngineName

CHAINS = measured_chains()


@pytest.mark.parametrize("queries", [1, 100])
@pytest.mark.parametrize("engine", CHAINS)
def test_engine_is_split_exactly_where_a_split_is_the_fastest(
    engine: EngineName, queries: int
) -> None:
    for slowness, mbit_s, form in product((1, 3, 8), (5, 50, 200, 1000), FORMS):
        problem = problem_of(CHAINS[engine], slowness, mbit_s, form, queries)
        assert cell(problem).is_right, (slowness, mbit_s, form)


def test_grid_has_cells_of_both_kinds() -> None:
    ssd = CHAINS[EngineName("onnx_ssd_op11")]
    gains = [cell(problem_of(ssd, 2, 200, form, queries=100)).gain for form in FORMS]
    assert gains[0] > 0 > gains[2]
