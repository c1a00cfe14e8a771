"""ONNX Runtime's OpenVINO provider on the CPU, in a Python environment of its own.

``onnxruntime-openvino`` replaces ``onnxruntime``, so the test installs it and this project into a
new virtual environment, with the pinned versions of all else. `openvino_fleet.py` runs there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from synergai.zoo import build as zoo

ROOT = Path(__file__).parents[2]
PACKAGE = "onnxruntime-openvino==1.24.1"
ENGINES = ("onnx_digits", "onnx_mobilenet_op11", "onnx_ssd_op8")
"""OpenVINO 2025.4 cannot read the last one."""
PROFILED = "onnx_digits,onnx_mobilenet_op11"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the provider."""
    folder = tmp_path_factory.mktemp("openvino")
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(p for p in pinned if not p.startswith("onnxruntime==")))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    project = f"{ROOT}[cli,client,gateway,agent,profiler]"
    done = subprocess.run(
        [
            *(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--constraint", str(constraints), "--editable", project, PACKAGE),
        ],
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return python


def test_openvino_answers_like_the_cpu_and_is_chosen_where_it_is_faster(
    python: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    for name in ENGINES:
        zoo.build(name, models)
    script = Path(__file__).with_name("openvino_fleet.py")
    done = subprocess.run(
        [
            *(str(python), str(script), "--models", str(models), "--directory", str(tmp_path)),
            *("--profiled", PROFILED),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    compared = {each["engine"] for each in records if "difference" in each}
    chosen = [(each["engine"], each["by"]) for each in records if "by" in each]
    assert compared >= set(PROFILED.split(","))
    assert len([each for each in records if "qps" in each]) == 4
    assert {by for _, by in chosen} >= {"measured", "opposite"}
