"""Making of 8-bit variants of an engine's ONNX models.

New variants are made and checked in a folder of their own. Their files are moved into the folder
``variants`` of the engine before its engine.toml names them, so that the engine can be loaded at
every instant, and an interruption leaves it as it was.
"""

from __future__ import annotations

import logging
import operator
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from profiler.installation import read_other_keys, staging_folder, write_definition
from profiler.model_description import describe
from synergai.domain import MAX_VARIANTS, Origin
from synergai.errors import EngineUnusable, InvalidInput, NotFound
from synergai.models.definition import VariantKeys, read_definition
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import DEFINITION_FILE, SAMPLES_FILE
from synergai.models.processing import CLASSES, ClassPostprocessor
from synergai.models.samples import load_samples
from synergai.names import split_version
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from synergai.models.directory import EngineDefinition
    from synergai.models.samples import Samples

    Sample = Mapping[str, NDArray[Any]]


FULL: Final = "full"
"""Name of an engine's only model once it has variants."""
INT8: Final = "int8"
FOLDER: Final = "variants"
"""Folder in the engine's, in which readers of the model directory look for no model."""
_SUFFIX: Final = ".onnx"
_DIGEST_CHARS: Final = 8
_ACCURACY_SAMPLES: Final = 1000
"""Most labelled samples that a variant is run on; `synergai profile` runs all."""


def make_variants(
    models: Path, name: str, say: Callable[[str], object] = lambda _: None
) -> EngineDefinition:
    """Add an 8-bit variant of each ONNX model of an engine; return the engine."""
    definition, folder = _find(models, name)
    variants = _variants(definition, folder)
    wanted = _wanted(definition, folder, variants)
    try:
        with staging_folder(models, split_version(name)[0]) as work:
            made = _make(definition, folder, wanted, work, say)
            keys = [*(made.sources.get(each.name, each) for each in variants), *made.variants]
            tables = {"variants": [each.to_table() for each in keys]}
            write_definition(work, read_other_keys(folder) | tables)
            (folder / FOLDER).mkdir(exist_ok=True)
            for each in made.variants:
                (work / Path(each.file).name).replace(folder / each.file)
            (work / DEFINITION_FILE).replace(folder / DEFINITION_FILE)
    except OSError as error:
        raise InvalidInput(f"cannot write to {models}: {error.strerror}") from error
    return ModelDirectory(models).get(name)


class _Made(NamedTuple):
    """New variants, and those that they were made of by name, with their accuracies."""

    variants: list[VariantKeys]
    sources: dict[str, VariantKeys]


def _wanted(
    definition: EngineDefinition, folder: Path, variants: Sequence[VariantKeys]
) -> dict[str, VariantKeys]:
    """Return the models to quantise, by the name of the variant that is made of each."""
    sources = definition.variants or (definition,)
    if not any(each.file.suffix == _SUFFIX for each in sources):
        raise InvalidInput(
            f"engine {definition.name!r} is not an ONNX model: variants can be made of ONNX models "
            "only"
        )
    if definition.samples is None:
        raise InvalidInput(
            f"engine {definition.name!r} has no {SAMPLES_FILE} to calibrate 8-bit integers on; put "
            "one into its folder, with an array for each input of the model"
        )
    names = {each.name for each in variants}
    found: dict[str, VariantKeys] = {}
    for each in variants:
        name, source = INT8 if each.name == FULL else f"{each.name}-{INT8}", folder / each.file
        if not _is_int8(each.name) and source.suffix == _SUFFIX and source.is_file():
            found[name] = each
    found = {name: each for name, each in found.items() if name not in names}
    if not found:
        raise InvalidInput(
            f"engine {definition.name!r} has these variants already: "
            f"{', '.join(each.name for each in variants)}; to make one again, remove it first from "
            "its engine.toml"
        )
    if len(variants) + len(found) > MAX_VARIANTS:
        raise InvalidInput(f"an engine has at most {MAX_VARIANTS} variants")
    return found


def _make(
    definition: EngineDefinition,
    folder: Path,
    wanted: Mapping[str, VariantKeys],
    work: Path,
    say: Callable[[str], object],
) -> _Made:
    """Make variants in a folder, and check them there."""
    made = _Made([], {})
    refused: InvalidInput | None = None
    for name, source in wanted.items():
        original, file = folder / source.file, work / f"{name}{_SUFFIX}"
        like = describe(original)
        samples = load_samples(definition, like.contents.inputs)
        say(f"quantising {source.name}")
        try:
            quantise(original, file, samples.inputs)
        except InvalidInput as error:  # such as one that is quantised already
            refused = refused or error
            continue
        say(f"checking {name}")
        found = describe(file)
        for what in ("inputs", "outputs"):
            if getattr(found.contents, what) != getattr(like.contents, what):
                raise InvalidInput(f"variant {name!r} was made with other {what} than its engine's")
        path = f"{FOLDER}/{name}-{found.digest[:_DIGEST_CHARS]}{_SUFFIX}"
        keys = VariantKeys(name=name, file=path, sha256=found.digest)
        made.variants.append(_measured(keys, file, definition, samples))
        made.sources[source.name] = _measured(source, original, definition, samples)
        file.rename(work / Path(path).name)
    if refused is not None and not made.variants:
        raise refused
    return made


def _measured(
    variant: VariantKeys, file: Path, definition: EngineDefinition, samples: Samples
) -> VariantKeys:
    """Run a variant on samples; return it with its accuracy if they have labels."""
    import onnxruntime

    labels = samples.labels
    inputs = samples.inputs[: CALIBRATION_SAMPLES if labels is None else _ACCURACY_SAMPLES]
    try:
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        answers = [session.run(None, each)[0] for each in inputs]
    except Exception as error:  # the runtime raises many kinds
        raise InvalidInput(f"variant {variant.name!r} does not work: {error}") from error
    if labels is None:
        return variant
    if definition.postprocess == CLASSES:
        classes = ClassPostprocessor(describe(file).contents.outputs)
        [output] = classes.required_outputs
        predicted = [int(classes.derive({output: each})[0]) for each in answers]
    else:
        predicted = [int(each.argmax()) for each in answers]
    right = sum(map(operator.eq, predicted, labels.tolist()))
    accuracy = round(right / len(predicted), 6)
    return replace(variant, accuracy=accuracy, origin=Origin.MEASURED)


def _find(models: Path, name: str) -> tuple[EngineDefinition, Path]:
    """Return a usable engine and its folder."""
    definition = ModelDirectory(models).get(name)
    if definition.fault or definition.folder is None:
        raise EngineUnusable(f"engine {name!r}: {definition.fault}")
    return definition, definition.folder


def _variants(definition: EngineDefinition, folder: Path) -> list[VariantKeys]:
    """Return the variants of an engine; if it has none, its only model as one."""
    if not definition.variants:
        return [
            VariantKeys(
                name=FULL,
                file=definition.file.relative_to(folder).as_posix(),
                sha256=definition.verified_digest(),
                accuracy=definition.accuracy,
            )
        ]
    own = folder / DEFINITION_FILE
    return list(read_definition(own if own.exists() else folder.parent / DEFINITION_FILE).variants)


def _is_int8(name: str) -> bool:
    return name == INT8 or name.endswith(f"-{INT8}")


CALIBRATION_SAMPLES: Final = 256
"""Samples that determine the ranges of activations; more change little."""
_OPSET: Final = 13
"""The first one with a scale per channel."""
_NEVER: Final = frozenset({"ArgMax", "Softmax", "TopK", "NonMaxSuppression"})
"""Operators whose result is the answer: rounding it would make ties between classes."""


def quantise(source: Path, target: Path, samples: Sequence[Sample]) -> None:
    """Write the model of a file with 8-bit integers.

    Weights are signed, with one scale per output channel; activations are unsigned, with ranges
    from calibration on samples. The result has pairs of QuantizeLinear and DequantizeLinear around
    each operator (QDQ), which runtimes fuse into integer kernels. Inputs and outputs stay as they
    are.

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
