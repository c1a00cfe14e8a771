"""Execution of the acceptance scripts of this folder by tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_script(name: str, *options: str) -> str:
    """Run a script, check that it succeeds, and return its output."""
    command = [sys.executable, str(Path(__file__).with_name(name)), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
