"""Hundreds of power cuts at random points of the journal's writes."""

import pytest

from tests.acceptance.scripts import run_script


@pytest.mark.parametrize("seed", ["1", "2"])
def test_five_hundred_power_cuts_lose_nothing(seed: str) -> None:
    run_script("power_loss.py", "--cuts", "500", "--jobs", "60", "--seed", seed)
