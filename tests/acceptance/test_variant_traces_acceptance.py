"""Engines with variants under changing load, live; the full form is `variant_traces.py`."""

from __future__ import annotations

from tests.acceptance.scripts import run_script


def test_variants_answer_in_time_and_within_a_point_of_the_bound() -> None:
    scenarios = ("--scenarios", "single-server,three-servers", "--shapes", "linear,twitter")
    run_script("variant_traces.py", *scenarios, "--seconds", "15")
