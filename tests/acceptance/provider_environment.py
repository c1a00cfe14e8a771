"""Python environments with another package of ONNX Runtime, and scripts that run there.

The packages with further execution providers replace ``onnxruntime``. They and this project are
installed into a new virtual environment, with the pinned versions of all else.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.scripts import run

_ROOT: Final = Path(__file__).parents[2]


def install(folder: Path, package: str) -> Path:
    """Return the interpreter of a new environment with `package`; skip the test if that fails."""
    pinned = (_ROOT / "constraints.txt").read_text().splitlines()
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(p for p in pinned if not p.startswith("onnxruntime==")))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    project = f"{_ROOT}[cli,client,gateway,agent,profiler]"
    done = subprocess.run(
        [
            *(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--constraint", str(constraints), "--editable", project, "psutil", package),
        ],
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"{package} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


def run_script(python: Path, name: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a script of this folder; return the JSON documents that it prints, one per line."""
    command = [str(python), str(Path(__file__).with_name(name)), *arguments]
    output = run(command, {**os.environ, "PYTHONPATH": str(_ROOT)})
    return [json.loads(line) for line in output.splitlines()]
