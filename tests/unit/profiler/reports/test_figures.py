"""Scales of figures."""

import pytest

from profiler.reports.drawing import is_dwarfed


@pytest.mark.parametrize(
    ("series", "dwarfed"),
    [([1.0, 50.0], False), ([1.0, 51.0], True), ([0.0, 5.0], False), ([], False)],
)
def test_a_series_dwarfs_one_of_less_than_a_fiftieth(series: list[float], dwarfed: bool) -> None:
    assert is_dwarfed(series) is dwarfed
