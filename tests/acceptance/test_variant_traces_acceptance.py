"""Engines with variants under changing load, live; the full form is `variant_traces.py`."""

import subprocess
import sys
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).with_name("variant_traces.py")


def test_variants_answer_in_time_and_within_a_point_of_the_bound() -> None:
    command = [sys.executable, str(SCRIPT), "--scenarios", "single-server,three-servers"]
    command += ["--shapes", "linear,twitter", "--seconds", "15"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
