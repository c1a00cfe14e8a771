"""The model files behind the thesis's engines, as referenced by MLPerf's reference application.

The engines' names are the thesis's. It does not name the files; they were identified by the
published accuracies.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from synergai.domain import EngineName
from synergai.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from synergai.models.installation import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published model file.

    Attributes:
        url: URL of the file, or of the archive that contains it.
        file: Name of the model file.
        md5: MD5 of the file, hexadecimal; empty if none was published.
        accuracy: Published top-1 accuracy on ImageNet, 0 to 1; None for detection.
        mean_average_precision: Published value on COCO, 0 to 1; None for classification.
        inputs: Input tensors of a frozen graph; empty for formats that declare them.
        outputs: Output tensors of a frozen graph; empty for formats that declare them.
    """

    name: EngineName
    url: str
    file: str
    md5: str = ""
    title: str
    accuracy: float | None = None
    mean_average_precision: float | None = None
    preprocess: str
    postprocess: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @property
    def keys(self) -> dict[str, Value]:
        """What the definition of the engine says."""
        return {
            "title": self.title,
            "accuracy": self.accuracy,
            "source": self.url,
            "preprocess": self.preprocess,
            "postprocess": self.postprocess,
        }

    def check(self, file: Path) -> None:
        """Check that a file is the published one, as far as its digest was published.

        Raises:
            InvalidInput: It is another file.
        """
        if not self.md5 or not file.is_file():
            return
        with file.open("rb") as content:
            # MD5 protects against corruption, not against an attacker.
            found = hashlib.file_digest(content, _md5).hexdigest()
        if found != self.md5:
            raise InvalidInput(
                f"{file} has the MD5 {found}, but {self.md5} was published for {self.name!r}: "
                f"download it again from {self.url}"
            )


def _md5() -> Any:
    return hashlib.md5(usedforsecurity=False)


def find_published(name: str) -> Published:
    """Return the published file for the engine `name`."""
    for file in PUBLISHED:
        if file.name == name:
            return file
    names = ", ".join(file.name for file in PUBLISHED)
    raise NotFound(f"there is no recipe {name!r}, only: {names}")


def _resnet50(
    name: str, url: str, md5: str, title: str, outputs: tuple[str, ...] = ()
) -> Published:
    return Published(
        name=EngineName(name),
        url=url,
        file=url.rpartition("/")[2],
        md5=md5,
        title=title,
        accuracy=0.76456,
        preprocess="resnet50",
        postprocess="classes",
        inputs=("input_tensor:0",) if outputs else (),
        outputs=outputs,
    )


def _mobilenet(name: str, url: str, title: str, accuracy: float, member: str = "") -> Published:
    frozen = member.endswith(".pb")
    return Published(
        name=EngineName(name),
        url=url,
        file=member or url.rpartition("/")[2],
        title=title,
        accuracy=accuracy,
        preprocess="mobilenet",
        postprocess="classes",
        inputs=("input:0",) if frozen else (),
        outputs=("MobilenetV1/Predictions/Reshape_1:0",) if frozen else (),
    )


def _ssd(
    name: str, url: str, title: str, precision: float, outputs: tuple[str, ...] = ()
) -> Published:
    return Published(
        name=EngineName(name),
        url=url,
        file=url.rpartition("/")[2],
        title=f"{title}; mAP {precision} on COCO",
        mean_average_precision=precision,
        preprocess="ssd",
        postprocess="boxes",
        inputs=("image_tensor:0",) if outputs else (),
        outputs=outputs,
    )


_ZENODO: Final = "https://zenodo.org/record"
_MOBILENET: Final = f"{_ZENODO}/2269307/files/mobilenet_v1_1.0_224.tgz"
_MOBILENET_QUANT: Final = f"{_ZENODO}/2269307/files/mobilenet_v1_1.0_224_quant.tgz"
_SSD_ONNX: Final = "ssd_mobilenet_v1_coco_2018_01_28.onnx"

PUBLISHED: Final = (
    _resnet50(
        "tf_resnet50",
        f"{_ZENODO}/2535873/files/resnet50_v1.pb",
        "7b94a2da05dd30f6c0af23a46bc08886",
        "ResNet-50 v1.5, TensorFlow",
        ("ArgMax:0",),
    ),
    _mobilenet(
        "tf_mobilenet",
        _MOBILENET,
        "MobileNet v1 1.0 224, TensorFlow",
        0.71676,
        "mobilenet_v1_1.0_224_frozen.pb",
    ),
    _mobilenet(
        "tf_mobilenet_q",
        _MOBILENET_QUANT,
        "MobileNet v1 1.0 224, quantised, TensorFlow",
        0.70694,
        "mobilenet_v1_1.0_224_quant_frozen.pb",
    ),
    _mobilenet(
        "tfl_mobilenet",
        _MOBILENET,
        "MobileNet v1 1.0 224, TFLite",
        0.71676,
        "mobilenet_v1_1.0_224.tflite",
    ),
    _mobilenet(
        "tfl_mobilenet_q",
        _MOBILENET_QUANT,
        "MobileNet v1 1.0 224, 8-bit integers, TFLite",
        0.70762,
        "mobilenet_v1_1.0_224_quant.tflite",
    ),
    _resnet50(
        "onnx_resnet50_op8",
        f"{_ZENODO}/2592612/files/resnet50_v1.onnx",
        "a638cf028b5870da29e09ccc2f7182e7",
        "ResNet-50 v1.5, ONNX opset 8",
    ),
    _resnet50(
        "onnx_resnet50_op11",
        f"{_ZENODO}/4735647/files/resnet50_v1.onnx",
        "f6a4da60cd5f084d97efc2c1ddb10beb",
        "ResNet-50 v1.5, ONNX opset 11",
    ),
    _mobilenet(
        "onnx_mobilenet_op8",
        f"{_ZENODO}/3157894/files/mobilenet_v1_1.0_224.onnx",
        "MobileNet v1 1.0 224, ONNX opset 8",
        0.71676,
    ),
    _mobilenet(
        "onnx_mobilenet_op11",
        f"{_ZENODO}/4735651/files/mobilenet_v1_1.0_224.onnx",
        "MobileNet v1 1.0 224, ONNX opset 11",
        0.71676,
    ),
    _ssd(
        "tf_ssd",
        f"{_ZENODO}/3401714/files/"
        "ssd_mobilenet_v1_quant_ft_no_zero_point_frozen_inference_graph.pb",
        "SSD-MobileNet v1 300, quantised, TensorFlow",
        0.234,
        (
            "num_detections:0",
            "detection_boxes:0",
            "detection_scores:0",
            "detection_classes:0",
        ),
    ),
    _ssd(
        "onnx_ssd_op8",
        f"{_ZENODO}/3163026/files/{_SSD_ONNX}",
        "SSD-MobileNet v1 300, ONNX opset 8",
        0.23,
    ),
    _ssd(
        "onnx_ssd_op11",
        f"{_ZENODO}/4735652/files/{_SSD_ONNX}",
        "SSD-MobileNet v1 300, ONNX opset 11",
        0.23,
    ),
)
