from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_goodput_holds_at_ten_times_the_capacity_and_rejections_are_immediate() -> None:
    script = Path(__file__).with_name("overload.py")
    command = [sys.executable, str(script), "--seconds", "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
