"""A short run of the test with mutated model files."""

from tests.acceptance.scripts import run_script


def test_agent_survives_a_few_mutated_models() -> None:
    output = run_script("mutated_models.py", "--count", "8")
    assert "8 mutated files" in output
    assert "0 agent deaths" in output
