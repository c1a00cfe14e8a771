"""A model directory with tiny engines that classify and detect plain colours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import cv2
import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper

from synergai.models.processing import MOBILENET, prepare
from tests.tiny_onnx import new_model, save_model

TensorInfo: TypeAlias = tuple[str, int, list[int | str]]
"""Name, element type and shape of an input or output."""

COLOURS: Final = {"red": (200, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 200)}
"""The colours both engines distinguish: as classes 0, 1 and 2, and as detections 1, 2 and 3."""
BOX: Final = (0.25, 0.1, 0.75, 0.9)
"""The object that the detector finds in every image: ymin, xmin, ymax, xmax."""


def picture(colour: str, suffix: str = ".jpg", height: int = 30, width: int = 40) -> bytes:
    """Return an encoded image of one colour."""
    pixels = np.full((height, width, 3), COLOURS[colour][::-1], np.uint8)
    return bytes(cv2.imencode(suffix, pixels)[1])


def mobilenet_input(image: bytes) -> NDArray[np.float32]:
    """Return an image as the tensor of MobileNet v1 in ONNX."""
    return np.ascontiguousarray(prepare(MOBILENET, image).transpose(2, 0, 1)[np.newaxis])


def save_image_engines(models: Path) -> Path:
    """Fill a model directory.

    - ``colours`` takes MobileNet's input and returns 1001 scores, with those of red, green and blue
      in the first places after the background;
    - ``detector`` takes SSD's input and finds one object, whose class is the image's colour.
    """
    scores = np.zeros((3, 1001), np.float32)
    scores[:, 1:4] = np.eye(3)
    _save(
        models / "colours",
        'preprocess = "mobilenet"\npostprocess = "classes"\n',
        [
            helper.make_node("ReduceMean", ["input:0"], ["mean"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["mean", "scores"], ["p:0"]),
        ],
        [("input:0", TensorProto.FLOAT, ["n", 3, 224, 224])],
        [("p:0", TensorProto.FLOAT, ["n", 1001])],
        {"scores": scores},
    )
    _save(
        models / "detector",
        'preprocess = "ssd"\npostprocess = "boxes"\n',
        [
            helper.make_node("Cast", ["image_tensor:0"], ["pixels"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[1, 2], keepdims=0),
            helper.make_node("ArgMax", ["mean"], ["colour"], axis=1),
            helper.make_node("Add", ["colour", "one"], ["class"]),
            helper.make_node("Cast", ["class"], ["detection_classes:0"], to=TensorProto.FLOAT),
            *(
                helper.make_node("Identity", [f"the_{name}"], [f"{name}:0"])
                for name in ("num_detections", "detection_boxes", "detection_scores")
            ),
        ],
        [("image_tensor:0", TensorProto.UINT8, [1, "height", "width", 3])],
        [
            ("num_detections:0", TensorProto.FLOAT, [1]),
            ("detection_boxes:0", TensorProto.FLOAT, [1, 1, 4]),
            ("detection_scores:0", TensorProto.FLOAT, [1, 1]),
            ("detection_classes:0", TensorProto.FLOAT, [1, 1]),
        ],
        {
            "one": np.int64(1),
            "the_num_detections": np.ones(1, np.float32),
            "the_detection_boxes": np.array([[BOX]], np.float32),
            "the_detection_scores": np.array([[0.5]], np.float32),
        },
    )
    return models


def _save(
    folder: Path,
    definition: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[TensorInfo],
    outputs: Sequence[TensorInfo],
    constants: Mapping[str, ArrayLike],
) -> None:
    given, answered = (
        [helper.make_tensor_value_info(*each) for each in tensors] for tensors in (inputs, outputs)
    )
    save_model(folder / "model.onnx", new_model(nodes, given, answered, constants))
    (folder / "engine.toml").write_text(definition)
