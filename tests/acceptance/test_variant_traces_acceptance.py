"""Engines with variants under changing load, live; the full form is `variant_traces.py`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

SCRIPT: Final = Path(__file__).with_name("variant_traces.py")
SHAPES: Final = ("linear", "twitter")
GAPS: Final = {f"three-servers, {shape}: slackfit is better" for shape in SHAPES}
"""Known errors, which have a test of their own."""


@pytest.fixture(scope="module")
def errors() -> set[str]:
    """Run the script to its end, and return the errors that it found."""
    command = [sys.executable, str(SCRIPT), "--scenarios", "single-server,three-servers"]
    command += ["--shapes", ",".join(SHAPES), "--seconds", "15"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("{")]
    if not lines or not re.fullmatch(r"\d+ errors", lines.pop()):
        pytest.fail(done.stdout + done.stderr)
    assert (done.returncode == 0) is (not lines)
    return set(lines)


def test_variants_answer_in_time_and_within_a_point_of_the_bound(errors: set[str]) -> None:
    assert errors - GAPS == set()


@pytest.mark.xfail(
    strict=False,  # one request that is late under SlackFit outweighs the gap
    raises=AssertionError,
    reason="exact times let SlackFit use all of a request's time; "
    "tests/unit/simulator/test_accuracy_study.py has the strict form",
)
def test_slackfit_is_not_better_on_several_servers_with_exact_times(errors: set[str]) -> None:
    assert errors & GAPS == set()
