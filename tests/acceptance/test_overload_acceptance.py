"""Overload of up to ten times the capacity."""

from __future__ import annotations

from tests.acceptance.scripts import run_script


def test_goodput_holds_at_ten_times_the_capacity_and_rejections_are_immediate() -> None:
    run_script("overload.py", "--seconds", "20")
