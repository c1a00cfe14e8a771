"""Requests and jobs mixed under every policy, on one worker and on three."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_requests_and_jobs_do_not_starve_each_other_under_any_policy() -> None:
    script = Path(__file__).with_name("mixed_load.py")
    command = [sys.executable, str(script), "--seconds", "20", "--workers", "1,3"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
