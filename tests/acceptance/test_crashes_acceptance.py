from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_two_hundred_kills_neither_lose_nor_duplicate_queries() -> None:
    script = Path(__file__).with_name("crashes.py")
    command = [sys.executable, str(script), "--kills", "200", "--jobs", "2000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
