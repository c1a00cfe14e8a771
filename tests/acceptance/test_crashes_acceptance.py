"""Dozens of random kills of gateway, agents and engine hosts."""

from tests.acceptance.scripts import run_script


def test_sixty_kills_neither_lose_nor_duplicate_queries() -> None:
    run_script("crashes.py", "--kills", "60", "--jobs", "6000")
