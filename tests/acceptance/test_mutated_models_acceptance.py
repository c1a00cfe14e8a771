from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_agent_survives_a_thousand_mutated_models() -> None:
    script = Path(__file__).with_name("mutated_models.py")
    command = [sys.executable, str(script), "--count", "1000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
