"""ONNX Runtime's OpenVINO provider on the CPU, in a Python environment of its own."""

from pathlib import Path
from typing import Final

import pytest

from synergai.zoo import build as zoo
from tests.acceptance.provider_environment import install, run_script

PACKAGE: Final = "onnxruntime-openvino==1.24.1"
ENGINES: Final = ("onnx_digits", "onnx_mobilenet_op11", "onnx_ssd_op8")
"""OpenVINO 2025.4 cannot read the last one."""
PROFILED: Final = "onnx_digits,onnx_mobilenet_op11"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the provider."""
    return install(tmp_path_factory.mktemp("openvino"), PACKAGE)


def test_openvino_answers_like_the_cpu_and_is_chosen_where_it_is_faster(
    python: Path, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    for name in ENGINES:
        zoo.build(name, models)
    folders = ("--models", str(models), "--directory", str(tmp_path))
    records = run_script(python, "provider_fleet.py", "OpenVINO", *folders, "--profiled", PROFILED)
    compared = {each["engine"] for each in records if "difference" in each}
    chosen = [(each["engine"], each["by"]) for each in records if "by" in each]
    assert compared >= set(PROFILED.split(","))
    assert len([each for each in records if "qps" in each]) == 4
    assert {by for _, by in chosen} >= {"measured", "opposite"}
