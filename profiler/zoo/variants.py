"""Making of 8-bit variants of an engine's ONNX models.

New variants are made in a hidden copy of the engine and checked there in engine hosts. Their files
are moved into the folder ``variants`` of the engine before its engine.toml names them, so that the
engine can be loaded at every instant, and an interruption leaves it as it was.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from msgspec.structs import replace

from profiler.installation import link_file, read_other_keys, staging_folder, write_definition
from synergai.domain import MAX_VARIANTS, Origin
from synergai.errors import EngineUnusable, InvalidInput, NotFound
from synergai.models.definition import VariantKeys, read_definition
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import DEFINITION_FILE, SAMPLES_FILE, digest
from synergai.models.samples import load_samples
from synergai.names import split_version
from synergai.runtime.text import pip_install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from synergai.domain import TensorSpec
    from synergai.models.directory import EngineDefinition

    Sample = Mapping[str, NDArray[Any]]


FULL: Final = "full"
"""Name of an engine's only model once it has variants."""
INT8: Final = "int8"
FOLDER: Final = "variants"
"""Folder in the engine's, in which readers of the model directory look for no model."""
_SUFFIX: Final = ".onnx"
_DIGEST_CHARS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedVariant:
    """Results of running a variant.

    Attributes:
        unverified: why it is not known to work; empty if it is.
        labelled: number of labelled samples that it was run on.
        correct: number of these that it answered correctly.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    unverified: str = ""
    labelled: int = 0
    correct: int = 0


VariantCheck: TypeAlias = "Callable[[Path, str, str], CheckedVariant]"
"""Runs a variant of an engine in a model directory on the engine's samples, in an engine host."""


def make_variants(
    models: Path,
    name: str,
    check: VariantCheck,
    say: Callable[[str], object] = lambda _: None,
) -> EngineDefinition:
    """Add an 8-bit variant of each model of an engine; return the engine."""
    definition, folder = _find(models, name)
    try:
        with staging_folder(models, split_version(name)[0]) as staging:
            workshop = _Workshop(definition, folder, staging, check, say)
            workshop.make()
            _install(workshop.folder, folder)
    except OSError as error:
        raise InvalidInput(f"cannot write to {models}: {error.strerror}") from error
    return ModelDirectory(models).get(name)


class _Workshop:
    """Makes variants in a copy of an engine.

    Args:
        staging: an empty folder, which becomes the model directory of the copy.
    """

    def __init__(
        self,
        definition: EngineDefinition,
        original: Path,
        staging: Path,
        check: VariantCheck,
        say: Callable[[str], object],
    ) -> None:
        self._definition = definition
        self._original = original
        self._staging = staging
        self._name = split_version(definition.name)[0]
        self.folder = staging / self._name
        self._check = check
        self._say = say
        self._variants = _variants(definition, original)
        self._made: list[str] = []

    def make(self) -> None:
        """Make the variants, check them, and describe them in the copy's engine.toml."""
        sources = self._definition.variants or (self._definition,)
        if not any(each.file.suffix == _SUFFIX for each in sources):
            raise InvalidInput(
                f"engine {self._definition.name!r} is not an ONNX model: variants can be made of "
                "ONNX models only"
            )
        if self._definition.samples is None:
            raise InvalidInput(
                f"engine {self._definition.name!r} has no {SAMPLES_FILE} to calibrate 8-bit "
                "integers on; put one into its folder, with an array for each input of the model"
            )
        wanted = self._wanted()
        if not wanted:
            known = ", ".join(each.name for each in self._variants)
            raise InvalidInput(
                f"engine {self._definition.name!r} has these variants already: {known}; to make "
                "one again, remove it first from its engine.toml"
            )
        self._copy()
        first = self._definition.of_variant("").variant or FULL
        like = self._measure(first)
        self._quantise(wanted, like)
        self._write()
        for name in self._made:
            _check_alike(name, self._measure(name), like)
        self._write()

    def _copy(self) -> None:
        """Give the copy the files of the engine, as links where possible."""
        (self.folder / FOLDER).mkdir(parents=True)
        files = {self._original / each.file: each.file for each in self._variants}
        if self._definition.samples is not None:
            files[self._definition.samples] = SAMPLES_FILE
        for file, name in files.items():
            if file.is_file():
                target = self.folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                link_file(file, target)
        self._write()

    def _measure(self, name: str) -> CheckedVariant:
        """Check a variant, and set its accuracy if there are labels."""
        self._say(f"checking {name}")
        checked = self._check(self._staging, self._name, name)
        if checked.labelled:
            position = self._position(name)
            self._variants[position] = replace(
                self._variants[position],
                accuracy=round(checked.correct / checked.labelled, 6),
                origin=Origin.MEASURED,
            )
        return checked

    def _wanted(self) -> dict[str, VariantKeys]:
        """Return the models to quantise, by the name of the variant that is made of each."""
        found: dict[str, VariantKeys] = {}
        for each in self._variants:
            name = INT8 if each.name == FULL else f"{each.name}-{INT8}"
            source = self._original / each.file
            if _is_int8(each.name) or source.suffix != _SUFFIX or not source.is_file():
                continue
            if not self._has(name):
                found[name] = each
        return found

    def _quantise(self, wanted: Mapping[str, VariantKeys], like: CheckedVariant) -> None:
        samples = load_samples(self._definition, like.inputs).inputs
        refused: InvalidInput | None = None
        for name, each in wanted.items():
            self._say(f"quantising {each.name}")
            file = self.folder / FOLDER / f"{name}{_SUFFIX}"
            try:
                quantise(self.folder / each.file, file, samples)
            except InvalidInput as error:  # such as one that is quantised already
                refused = refused or error
            else:
                self._add(name, file)
        if refused is not None and not self._made:
            raise refused

    def _add(self, name: str, file: Path) -> None:
        """Add a variant; its file is named by its digest."""
        found = digest(file)
        target = file.with_name(f"{name}-{found[:_DIGEST_CHARS]}{_SUFFIX}")
        file.replace(target)
        keys = VariantKeys(name=name, file=f"{FOLDER}/{target.name}", sha256=found)
        if len(self._variants) == MAX_VARIANTS:
            raise InvalidInput(f"an engine has at most {MAX_VARIANTS} variants")
        self._variants.append(keys)
        self._made.append(name)

    def _has(self, name: str) -> bool:
        return any(each.name == name for each in self._variants)

    def _position(self, name: str) -> int:
        return [each.name for each in self._variants].index(name)

    def _write(self) -> None:
        _write(self._original, self.folder, self._variants)


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


def _write(original: Path, folder: Path, variants: Sequence[VariantKeys]) -> None:
    """Write an engine.toml with the variants, and otherwise the keys of the original folder."""
    keys = read_other_keys(original)
    write_definition(folder, keys | {"variants": [each.to_table() for each in variants]})


def _install(staged: Path, folder: Path) -> None:
    """Move new files, and then engine.toml, into an engine's folder; remove unused files."""
    variants = folder / FOLDER
    made = sorted((staged / FOLDER).glob(f"*{_SUFFIX}"))
    if made:
        variants.mkdir(exist_ok=True)
    for file in made:
        if not (variants / file.name).exists():
            file.replace(variants / file.name)
    (staged / DEFINITION_FILE).replace(folder / DEFINITION_FILE)
    used = {folder / each.file for each in read_definition(folder / DEFINITION_FILE).variants}
    for file in variants.glob(f"*{_SUFFIX}"):
        if file not in used:
            file.unlink()


def _is_int8(name: str) -> bool:
    return name == INT8 or name.endswith(f"-{INT8}")


def _check_alike(name: str, checked: CheckedVariant, like: CheckedVariant) -> None:
    """Check that a new variant can serve as its engine."""
    for what in ("inputs", "outputs"):
        if getattr(checked, what) != getattr(like, what):
            raise InvalidInput(f"variant {name!r} was made with other {what} than its engine's")
    if checked.unverified and not like.unverified:
        raise InvalidInput(f"variant {name!r} does not work: {checked.unverified}")


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
