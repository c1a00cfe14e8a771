"""Overload of up to ten times the capacity."""

import pytest

from tests.acceptance.scripts import run_script


@pytest.mark.parametrize("policy", ["malleable", "edf"])
def test_few_more_requests_than_must_miss_their_deadlines_under_overload(policy: str) -> None:
    run_script("overload.py", "--seconds", "20", "--policy", policy)
