"""Hundreds of random kills of gateway and agents."""

from __future__ import annotations

from tests.acceptance.scripts import run_script


def test_two_hundred_kills_neither_lose_nor_duplicate_queries() -> None:
    run_script("crashes.py", "--kills", "200", "--jobs", "2000")
