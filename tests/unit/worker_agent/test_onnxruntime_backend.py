from pathlib import Path

import numpy as np
import pytest

from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable
from tests.tiny_classifier import save_classifier
from worker_agent.backends.onnxruntime import OnnxRuntimeBackend
from worker_agent.providers import OPERATORS_VARIABLE


def test_outputs_that_are_no_tensors_are_left_out(tmp_path: Path) -> None:
    backend = OnnxRuntimeBackend(save_classifier(tmp_path / "m.onnx"), threads=1)
    assert backend.outputs == (TensorSpec("label", "INT64", (-1,)),)
    scores = np.array([[0.5, 0.2, 0.3], [0.1, 0.7, 0.2]], np.float32)
    [labels] = backend.run({"x": scores}, ["label"])
    assert labels.tolist() == [0, 1]


def test_library_of_operators_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ops.so").write_text("no library")
    monkeypatch.setenv(OPERATORS_VARIABLE, str(tmp_path / "ops.so"))
    with pytest.raises(EngineUnusable, match=r"cannot load m\.onnx: Failed to load .*ops\.so"):
        OnnxRuntimeBackend(save_classifier(tmp_path / "m.onnx"), threads=1)
