"""Requests mixed with jobs under every policy."""

from tests.acceptance.scripts import run_script


def test_requests_and_jobs_do_not_starve_each_other_under_any_policy() -> None:
    run_script("mixed_load.py", "--seconds", "6", "--workers", "1,3")
