"""A network that is larger than its task: MobileNet with seeded weights, reading digits.

The engine ``digits_mobilenet`` enlarges scikit-learn's digits to the network's input, and reads
its features with a classifier that is trained here. The network itself stays as it is. Most digits
are recognised by the features of early layers already, so early exits pay.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from sklearn import datasets

from profiler.cutting.heads import train_head
from profiler.installation import stage_engine, write_definition
from profiler.zoo import recipes as zoo
from synergai.models.formats.model_files import digest
from synergai.models.samples import write_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Images = NDArray[np.float32]
    Labels = NDArray[np.int64]

ENGINE: Final = "digits_mobilenet"
EXITS: Final = ("Conv2d_2_pointwise/Relu6", "Conv2d_5_pointwise/Relu6")
"""Where early exits pay."""
HELD_OUT: Final = 800
_BACKBONE: Final = "onnx_mobilenet_op11"
_FEATURES: Final = "Conv2d_13_pointwise/Relu6/features"
_ENLARGED: Final = 28  # 8 x 28 = 224 pixels
_SEED: Final = 7
_PROBABILITIES: Final = "probabilities"


def load() -> tuple[tuple[Images, Labels], tuple[Images, Labels]]:
    """Return the sample set, of which every other image trains, and the held-out images.

    Images are float32 [images, 1, 8, 8] from -1 to 1.
    """
    bunch = datasets.load_digits()
    order = np.random.default_rng(_SEED).permutation(len(bunch.target))
    images = (bunch.images[order, np.newaxis] / 8 - 1).astype(np.float32)
    labels = bunch.target[order].astype(np.int64)
    samples, held_out = slice(None, -HELD_OUT), slice(-HELD_OUT, None)
    return (images[samples], labels[samples]), (images[held_out], labels[held_out])


def build(models: Path) -> None:
    """Add the engine to a model directory, replacing an older one."""
    (images, labels), _ = load()
    with tempfile.TemporaryDirectory() as folder:
        zoo.build(_BACKBONE, Path(folder))
        model = onnx.load(Path(folder) / _BACKBONE / "model.onnx")
    graph = model.graph
    while graph.node[-1].output[0] != _FEATURES:
        del graph.node[-1]
    for each in [each for each in graph.initializer if each.name.startswith("Logits/")]:
        graph.initializer.remove(each)
    _enlarge(graph)
    graph.output[0].CopyFrom(_tensor(_FEATURES, "batch", 1024))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    features = [session.run(None, {"image": each[np.newaxis]})[0][0] for each in images[::2]]
    head = train_head(np.array(features, np.float64), labels[::2], 10)
    for name, array in zip(("weights", "bias"), head, strict=True):
        weights = numpy_helper.from_array(array.astype(np.float32), f"readout/{name}")
        graph.initializer.append(weights)
    inputs = [_FEATURES, "readout/weights", "readout/bias"]
    graph.node.append(helper.make_node("Gemm", inputs, ["readout"]))
    graph.node.append(helper.make_node("Softmax", ["readout"], [_PROBABILITIES], axis=1))
    graph.output[0].CopyFrom(_tensor(_PROBABILITIES, "batch", 10))
    with stage_engine(models, ENGINE, replace=True) as staged:
        file = staged / "model.onnx"
        onnx.save(model, file)
        write_samples(staged, {"image": images[:, np.newaxis], "labels": labels})
        title = "digits, read by MobileNet with seeded weights"
        write_definition(staged, {"file": file.name, "sha256": digest(file), "title": title})


def _enlarge(graph: onnx.GraphProto) -> None:
    """Let a model for photographs take images [batch, 1, 8, 8]."""
    source = graph.input[0].name
    scales = np.array([1, 1, _ENLARGED, _ENLARGED], np.float32)
    graph.initializer.append(numpy_helper.from_array(scales, "scales"))
    graph.initializer.append(numpy_helper.from_array(np.array([], np.float32), "region"))
    resize = helper.make_node("Resize", ["image", "region", "scales"], ["enlarged"], mode="nearest")
    graph.node.insert(0, resize)
    graph.node.insert(1, helper.make_node("Concat", ["enlarged"] * 3, [source], axis=1))
    graph.input[0].CopyFrom(_tensor("image", "batch", 1, 8, 8))


def _tensor(name: str, *shape: str | int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
