"""A thousand mutated model files."""

from tests.acceptance.scripts import run_script


def test_agent_survives_a_thousand_mutated_models() -> None:
    run_script("mutated_models.py", "--count", "1000")
