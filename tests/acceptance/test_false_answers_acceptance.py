"""Workers that answer falsely."""

from __future__ import annotations

from tests.acceptance.scripts import run_script


def test_liars_are_found_as_soon_as_theory_says_and_honest_workers_never() -> None:
    run_script("false_answers.py", "--liars", "5", "--queries", "1000")
