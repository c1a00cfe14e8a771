"""Jobs over a client's images while everything is killed."""

from tests.acceptance.scripts import run_script


def test_kills_neither_lose_nor_duplicate_results() -> None:
    run_script("own_data.py", "--images", "2000", "--kills", "8")


def test_rates_are_reported() -> None:
    run_script("own_data.py", "--images", "500", "--kills", "0")
