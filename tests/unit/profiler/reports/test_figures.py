"""Plain numbers and scales of figures."""

import pytest

from profiler.reports.drawing import is_dwarfed, plain_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.1 + 0.2, "0.3"),
        (0.00002, "0.00002"),
        (50.0, "50"),
        (12.5, "12.5"),
        (12_000.0, "12,000"),
        (2_500_000.0, "2,500,000"),
        (-0.5, "-0.5"),
    ],
)
def test_numbers_have_no_exponent(value: float, text: str) -> None:
    assert plain_number(value) == text


@pytest.mark.parametrize(
    ("series", "dwarfed"),
    [([1.0, 50.0], False), ([1.0, 51.0], True), ([0.0, 5.0], False), ([], False)],
)
def test_a_series_dwarfs_one_of_less_than_a_fiftieth(series: list[float], dwarfed: bool) -> None:
    assert is_dwarfed(series) is dwarfed
