"""All cuts of the zoo's ONNX engines: head and tail compute what the whole computes."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from synergai.domain import TensorSpec
from synergai.models.cutting.extraction import extract_stage
from synergai.models.cutting.graph import find_cuts
from synergai.models.directory import ModelDirectory
from synergai.models.samples import load_samples
from synergai.zoo import build as zoo
from tests.drawn_graphs import Arrays

ENGINES = [
    f"onnx_{name}_op{opset}" for name in ("mobilenet", "resnet50", "ssd") for opset in (8, 11)
]
CUTS = {"mobilenet": 57, "resnet50": 38, "ssd": 50}


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


@pytest.mark.parametrize("engine", ENGINES)
def test_all_cuts_give_the_answers_of_the_whole(engine: str, tmp_path: Path) -> None:
    zoo.build(engine, tmp_path, lambda _: None)
    definition = ModelDirectory(tmp_path).get(engine)
    model = onnx.load(definition.file)
    cuts = find_cuts(model)
    assert len(cuts) == CUTS[engine.split("_")[1]]
    whole = session(model)
    (given,) = whole.get_inputs()
    shape = tuple(size if isinstance(size, int) else -1 for size in given.shape)
    datatype = {"tensor(float)": "FP32", "tensor(uint8)": "UINT8"}[given.type]
    sample: Arrays = load_samples(definition, [TensorSpec(given.name, datatype, shape)]).inputs[0]
    expected = whole.run(None, sample)
    worst = 0.0
    for cut in cuts:
        head = session(extract_stage(model, "0" * 64, None, cut)).run([cut.tensor], sample)
        tail = session(extract_stage(model, "0" * 64, cut, None)).run(None, {cut.tensor: head[0]})
        for mine, theirs in zip(tail, expected, strict=True):
            if cut.exact:
                np.testing.assert_array_equal(mine, theirs, err_msg=cut.tensor)
            else:
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6, err_msg=cut.tensor)
            worst = max(worst, float(np.abs(mine - theirs).max(initial=0.0)))
    print(
        f"{engine}: {sum(cut.exact for cut in cuts)} exact of {len(cuts)}, at most {worst:.1e} off"
    )
