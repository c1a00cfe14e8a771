"""Memory of a gateway over many requests."""

from collections.abc import Callable

import pytest

from tests.acceptance import soak
from tests.acceptance.scripts import run_script


@pytest.mark.parametrize(
    ("megabytes", "grows"),
    [
        pytest.param(lambda _: 70.0, False, id="flat"),
        pytest.param(lambda i: 70.0 + 30.0 * (i > 50), False, id="one step"),
        pytest.param(lambda i: 70.0 + 0.2 * min(i, 20), False, id="only during warm-up"),
        pytest.param(lambda i: 70.0 + 0.16 * i, True, id="sixteen bytes per request"),
    ],
)
def test_only_steady_growth_is_an_error(megabytes: Callable[[int], float], *, grows: bool) -> None:
    samples = [soak.Sample(i * 10_000, {"gateway": int(megabytes(i) * 1e6)}) for i in range(1, 101)]
    found = soak.find_errors({"gateway": 70_000_000, "agent": 50_000_000}, samples)
    assert bool(found) is grows, found


def test_memory_does_not_grow_over_a_million_requests() -> None:
    run_script("soak.py", "--requests", "1000000")
