from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "acceptance" / "mutated_models.py"


def test_agent_survives_a_few_mutated_models() -> None:
    command = [sys.executable, str(SCRIPT), "--count", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 mutated files" in done.stdout
    assert "0 agent deaths" in done.stdout
