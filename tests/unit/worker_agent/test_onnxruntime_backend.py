from pathlib import Path

import numpy as np
import pytest

from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable
from tests.tiny_classifier import save_classifier
from worker_agent.backends.onnxruntime import OnnxRuntimeBackend
from worker_agent.providers import OPERATORS_VARIABLE


@pytest.mark.parametrize("classes", [(3, 1, 2), ("dog", "ant", "cat")])
def test_sequence_of_maps_is_a_row_of_probabilities_per_input(
    tmp_path: Path, classes: tuple[int, ...] | tuple[str, ...]
) -> None:
    backend = OnnxRuntimeBackend(save_classifier(tmp_path / "m.onnx", classes), threads=1)
    assert backend.outputs[1:] == (TensorSpec("probabilities", "FP32", (-1, -1)),)
    scores = np.array([[0.5, 0.2, 0.3], [0.1, 0.7, 0.2]], np.float32)
    labels, probabilities = backend.run({"x": scores}, ["label", "probabilities"])
    texts = [
        str(label.decode() if isinstance(label, bytes) else label) for label in labels.tolist()
    ]
    assert texts == [str(classes[0]), str(classes[1])]
    columns = sorted(range(3), key=lambda position: classes[position])
    assert probabilities.dtype == np.float32
    assert probabilities.tolist() == scores[:, columns].tolist()


def test_library_of_operators_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ops.so").write_text("no library")
    monkeypatch.setenv(OPERATORS_VARIABLE, str(tmp_path / "ops.so"))
    with pytest.raises(EngineUnusable, match=r"cannot load m\.onnx: Failed to load .*ops\.so"):
        OnnxRuntimeBackend(save_classifier(tmp_path / "m.onnx"), threads=1)
