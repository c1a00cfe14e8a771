"""Build of SynergAI's wheel from the checkout."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    done = subprocess.run([*build, str(CHECKOUT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = folder.glob("synergai-*.whl")
    return wheel
