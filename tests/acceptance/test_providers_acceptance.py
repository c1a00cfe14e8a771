"""ONNX Runtime's further execution providers, in Python environments of their own.

Their packages replace ``onnxruntime``. They and this project are installed into a new virtual
environment, with the pinned versions of all else.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from profiler.zoo import recipes as zoo
from tests.acceptance.scripts import run

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True)
class Provider:
    """A provider, and the engines that it is tried with; it can run some of them."""

    name: str
    package: str
    engines: tuple[str, ...]
    profiled: tuple[str, ...]


CUDA_ENGINES = ("onnx_digits", "onnx_mobilenet_op11", "onnx_resnet50_op11", "onnx_ssd_op11")
CUDA: Final = Provider("CUDA", "onnxruntime-gpu[cuda,cudnn]==1.31.1", CUDA_ENGINES, CUDA_ENGINES)
OPENVINO: Final = Provider(
    "OpenVINO",
    "onnxruntime-openvino==1.24.1",
    ("onnx_digits", "onnx_mobilenet_op11", "onnx_ssd_op8"),
    ("onnx_digits", "onnx_mobilenet_op11"),  # OpenVINO 2025.4 cannot read the last one
)
needs_gpu = pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="there is no NVIDIA GPU")

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(
    scope="module",
    params=[pytest.param(CUDA, marks=needs_gpu, id="CUDA"), pytest.param(OPENVINO, id="OpenVINO")],
)
def provider(request: pytest.FixtureRequest) -> Provider:
    found: Provider = request.param
    return found


@pytest.fixture(scope="module")
def run_script(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a script of this folder where the provider is; return the documents that it prints."""
    folder = tmp_path_factory.mktemp(provider.name)
    python = install(folder, provider.package)
    for name in provider.engines:
        zoo.build(name, folder / "models")

    def run_here(name: str, *arguments: str) -> list[dict[str, Any]]:
        script = Path(__file__).with_name(name)
        directory = folder / script.stem
        directory.mkdir()
        folders = ("--models", str(folder / "models"), "--directory", str(directory))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        output = run([str(python), str(script), *arguments, *folders], environment)
        return [json.loads(line) for line in output.splitlines()]

    return run_here


def install(folder: Path, package: str) -> Path:
    """Return the interpreter of a new environment with `package`; skip the test if that fails."""
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(p for p in pinned if not p.startswith("onnxruntime==")))
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    project = f"{ROOT}[cli,client,gateway,agent,profiler]"
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


def test_provider_answers_like_the_cpu_and_is_chosen_where_it_is_faster(
    provider: Provider, run_script: Run
) -> None:
    profiled = ",".join(provider.profiled)
    records = run_script("provider_fleet.py", provider.name, "--profiled", profiled)
    compared = {each["engine"] for each in records if "difference" in each}
    assert compared >= set(provider.profiled)
    assert len([each for each in records if "qps" in each]) == 2 * len(provider.profiled)
    assert {each["by"] for each in records if "by" in each} >= {"measured", "opposite"}


def test_faults_of_the_gpu_lose_no_work(provider: Provider, run_script: Run) -> None:
    if provider is not CUDA:
        pytest.skip("OpenVINO computes on the CPU")
    assert len(run_script("gpu_faults.py")) == 4
