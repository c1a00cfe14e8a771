"""Static quantisation of ONNX models to 8-bit integers.

Weights are signed, with one scale per output channel; activations are unsigned, with ranges from
calibration on samples. The result has pairs of QuantizeLinear and DequantizeLinear around each
operator (QDQ), which runtimes fuse into integer kernels. Inputs and outputs stay as they are.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from synergai.errors import InvalidInput, NotFound
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    Sample = Mapping[str, NDArray[Any]]

CALIBRATION_SAMPLES: Final = 256
"""Samples that determine the ranges of activations; more change little."""
_OPSET: Final = 13
"""The first one with a scale per channel."""
_NEVER: Final = frozenset({"ArgMax", "Softmax", "TopK", "NonMaxSuppression"})
"""Operators whose result is the answer: rounding it would make ties between classes."""


def quantise(source: Path, target: Path, samples: Sequence[Sample]) -> None:
    """Write the model of a file with 8-bit integers.

    Args:
        samples: inputs by name, as the model takes them; `CALIBRATION_SAMPLES` of them, spread
            evenly, are used.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # as in engine hosts
    try:
        import onnx
        from onnxruntime import quantization
    except ModuleNotFoundError as error:
        raise NotFound(
            f"quantisation needs the package {error.name!r}; {pip_install('engines')}"
        ) from None
    from onnxruntime.quantization.registry import QDQRegistry

    if not samples:
        raise InvalidInput(f"{source.name} has no samples to calibrate on; provide a samples.npz")
    with _quiet(), _translated(source.name):
        model = _upgraded(onnx.load(source))
    operators = {node.op_type for node in model.graph.node}
    if operators & {"QuantizeLinear", "DequantizeLinear"}:
        raise InvalidInput(f"{source.name} is quantised already")
    if not operators & {"Conv", "ConvTranspose", "Gemm", "MatMul"}:
        raise InvalidInput(
            f"{source.name} has no convolution or matrix product: 8-bit integers would not make it "
            "faster"
        )
    with (
        tempfile.TemporaryDirectory() as folder,
        _quiet(),
        _translated(source.name),
    ):
        prepared = Path(folder) / "prepared.onnx"
        onnx.save(model, prepared)
        quantization.quant_pre_process(prepared, prepared, skip_symbolic_shape=True)
        model = onnx.load(prepared)
        _flatten_biases(model)
        onnx.save(model, prepared)
        stems = _single_channel_stems(model)
        quantization.quantize_static(
            prepared,
            target,
            _Reader(samples),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=sorted(set(QDQRegistry) - _NEVER),
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            nodes_to_exclude=stems,
        )


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # onnx, its converter and the runtime raise many kinds
        text = " ".join(str(error).split())[:300]
        raise InvalidInput(
            f"{name} cannot be quantised: ONNX Runtime's quantiser fails at it "
            f"({type(error).__name__}: {text})"
        ) from error


def _flatten_biases(model: onnx.ModelProto) -> None:
    """Give each bias of a matrix product the one dimension that the quantiser expects of it."""
    from onnx import numpy_helper

    weights = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "Gemm" or len(node.input) < 3 or node.input[2] not in weights:
            continue
        kernel, bias = weights.get(node.input[1]), numpy_helper.to_array(weights[node.input[2]])
        transposed = any(each.name == "transB" and each.i for each in node.attribute)
        if kernel is None or bias.size not in (1, width := kernel.dims[0 if transposed else 1]):
            continue  # it differs between the rows of the result
        if bias.shape != (width,):
            flat = np.broadcast_to(bias.reshape(-1), width)
            node.input[2] = f"{node.name or node.output[0]}_bias"
            model.graph.initializer.append(numpy_helper.from_array(flat, node.input[2]))


def _single_channel_stems(model: onnx.ModelProto) -> list[str]:
    """Return the nodes of convolutions of an input with a single channel, such as a grey image.

    Each output takes so few products that integer kernels cost more per value than they save.
    """
    graph = model.graph
    inputs = {each.name for each in graph.input}
    inputs |= {n.output[0] for n in graph.node if n.op_type == "Cast" and n.input[0] in inputs}
    channels = {each.name: each.dims[1] for each in graph.initializer if len(each.dims) > 2}
    stems = [
        node
        for node in graph.node
        if node.op_type == "Conv" and node.input[0] in inputs and channels.get(node.input[1]) == 1
    ]
    results = {node.output[0] for node in stems}
    # An activation that is computed with its convolution.
    fused = [n for n in graph.node if n.op_type in ("Relu", "Clip") and n.input[0] in results]
    return [node.name for node in (*stems, *fused) if node.name]


class _Reader:
    """Yields calibration samples in the runtime's interface."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        step = max(1, len(samples) // CALIBRATION_SAMPLES)
        self._samples = iter(samples[::step][:CALIBRATION_SAMPLES])

    def get_next(self) -> Sample | None:
        """Return the next sample; None after the last one."""
        return next(self._samples, None)


def _upgraded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in an operator set that can be quantised per channel."""
    from onnx import version_converter

    version = next((each.version for each in model.opset_import if each.domain == ""), _OPSET)
    return version_converter.convert_version(model, _OPSET) if version < _OPSET else model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the runtime from printing advice and tracebacks for its developers."""
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.CRITICAL)  # it logs tracebacks of what it raises, too
    try:
        yield
    finally:
        root.setLevel(before)
