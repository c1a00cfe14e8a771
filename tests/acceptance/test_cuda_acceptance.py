"""ONNX Runtime's CUDA provider on a GPU, in a Python environment of its own."""

from pathlib import Path
from typing import Final

import pytest

from synergai.zoo import build as zoo
from tests.acceptance.provider_environment import install, run_script

PACKAGE: Final = "onnxruntime-gpu[cuda,cudnn]==1.31.1"
ENGINES: Final = ("onnx_digits", "onnx_mobilenet_op11", "onnx_resnet50_op11", "onnx_ssd_op11")

pytestmark = pytest.mark.skipif(
    not Path("/dev/nvidiactl").exists(), reason="there is no NVIDIA GPU"
)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the provider."""
    return install(tmp_path_factory.mktemp("cuda"), PACKAGE)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model directory."""
    directory = tmp_path_factory.mktemp("models")
    for name in ENGINES:
        zoo.build(name, directory)
    return directory


def test_cuda_answers_like_the_cpu_and_is_chosen_where_it_is_faster(
    python: Path, models: Path, tmp_path: Path
) -> None:
    folders = ("--models", str(models), "--directory", str(tmp_path))
    records = run_script(python, "provider_fleet.py", "CUDA", *folders)
    chosen = [(each["engine"], each["by"]) for each in records if "by" in each]
    assert {each["engine"] for each in records if "difference" in each} == set(ENGINES)
    assert len([each for each in records if "qps" in each]) == 2 * len(ENGINES)
    assert {by for _, by in chosen} == {"measured", "opposite"}


def test_faults_of_the_gpu_lose_no_work(python: Path, models: Path, tmp_path: Path) -> None:
    folders = ("--models", str(models), "--directory", str(tmp_path))
    records = run_script(python, "gpu_faults.py", *folders)
    assert len(records) == 6
