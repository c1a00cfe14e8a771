"""An engine's sample set, used for jobs' queries and for profiling.

A ``samples.npz`` has one array per input of the engine, named after the input, with the samples
along its leading axis; and optionally ``labels``, the correct class of each sample. If an array's
rank is one more than the input's, or that is unknown, sample *i* is ``array[i]``; if the ranks are
equal, it is the batch of one ``array[i : i + 1]``.
"""

from __future__ import annotations

import enum
import zipfile
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from synergai.domain import UNKNOWN_RANK
from synergai.errors import InvalidInput
from synergai.models.formats.model_files import SAMPLES_FILE
from synergai.wire.arrays import BFLOAT16_BITS, DTYPES
from synergai.wire.validation import shape_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from synergai.domain import TensorSpec
    from synergai.models.directory import EngineDefinition


Array: TypeAlias = "NDArray[Any]"

LABELS: Final = "labels"
MAX_SAMPLES_BYTES: Final = 4 << 30
"""Uncompressed size limit of a sample set: a small archive can unpack to a large one."""
RANDOM_SAMPLES: Final = 8


@dataclass(frozen=True, slots=True)
class Samples:
    """A sample set in the engine's own dtypes and shapes.

    Attributes:
        inputs: The arrays by input name, per sample.
        labels: int64 [samples], the correct class of each sample; None if unknown.
    """

    inputs: list[dict[str, Array]]
    labels: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.inputs)


def load_samples(definition: EngineDefinition, inputs: Sequence[TensorSpec]) -> Samples:
    """Load an engine's sample set, or generate seeded samples if it has none."""
    if definition.samples is None:
        return random_samples(inputs)
    where = f"{definition.name}/{definition.samples.name}"
    arrays = _read_arrays(where, definition.samples)
    labels = arrays.pop(LABELS, None)
    return _build_samples(where, inputs, arrays, labels)


def write_samples(folder: Path, arrays: Mapping[str, Array]) -> None:
    """Write a sample set into an engine's folder; for the arrays see the module."""
    with (folder / SAMPLES_FILE).open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def random_samples(inputs: Sequence[TensorSpec]) -> Samples:
    """Return seeded samples of the right dtypes and shapes; dynamic dimensions become 1."""
    return Samples(Synthesiser(inputs).generate(SyntheticCandidate(), RANDOM_SAMPLES))


def _read_arrays(where: str, path: Path) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size <= MAX_SAMPLES_BYTES:
            with np.load(path, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile and NumPy raise many kinds of errors
        raise InvalidInput(f"{where} is not an .npz archive of plain arrays") from error
    if size > MAX_SAMPLES_BYTES:
        raise InvalidInput(f"{where} unpacks to {size:,} bytes; the limit is {MAX_SAMPLES_BYTES:,}")
    for name, array in arrays.items():
        if not isinstance(
            array, np.ndarray
        ):  # NumPy returns members without the suffix .npy as bytes
            raise InvalidInput(f"{where}: {name!r} is not an array")
    return arrays


def _build_samples(
    where: str, inputs: Sequence[TensorSpec], arrays: dict[str, Array], labels: Array | None
) -> Samples:
    expected_names = [spec.name for spec in inputs]
    if set(arrays) != set(expected_names):
        raise InvalidInput(
            f"{where} has arrays for {', '.join(sorted(arrays)) or 'nothing'}, "
            f"but the engine takes {', '.join(sorted(expected_names))}"
        )
    columns = {spec.name: _split_samples(where, spec, arrays[spec.name]) for spec in inputs}
    counts = {len(samples_of_input) for samples_of_input in columns.values()}
    if len(counts) != 1 or 0 in counts:
        raise InvalidInput(f"{where}: all arrays must have the same number of samples")
    count = counts.pop()
    if labels is not None:
        if labels.shape != (count,) or labels.dtype.kind not in "iu":
            raise InvalidInput(f"{where}: labels must be {count} integers, one per sample")
        labels = labels.astype(np.int64)
    samples = [
        {name: samples_of_input[i] for name, samples_of_input in columns.items()}
        for i in range(count)
    ]
    return Samples(samples, labels)


def _split_samples(where: str, spec: TensorSpec, array: Array) -> list[Array]:
    dtype = dtype_of(spec)
    if dtype.hasobject and array.dtype.kind in "SU":
        array = to_bytes(array)
    if array.dtype != dtype:
        raise InvalidInput(f"{where}: {spec.name} is {array.dtype}, but the engine takes {dtype}")
    if array.ndim == len(spec.shape) and spec.shape[:1] in {(1,), (-1,)}:
        samples_of_input = [array[i : i + 1] for i in range(len(array))]
    elif array.ndim and (spec.shape == UNKNOWN_RANK or array.ndim == len(spec.shape) + 1):
        samples_of_input = [np.asarray(array[i]) for i in range(len(array))]
    else:
        raise InvalidInput(
            f"{where}: {spec.name} has the shape {list(array.shape)}; expected samples of "
            f"{list(spec.shape)} along a leading axis"
        )
    if samples_of_input and not shape_matches(samples_of_input[0].shape, spec.shape):
        raise InvalidInput(
            f"{where}: samples of {spec.name} have the shape {list(samples_of_input[0].shape)}, "
            f"but the engine takes {list(spec.shape)}"
        )
    # Runtimes and raw tensor contents need contiguous arrays.
    return [np.ascontiguousarray(sample).reshape(sample.shape) for sample in samples_of_input]


MAX_BYTES: Final = 1 << 30
"""Size limit of a synthetic input."""
_MAX_BYTES_BEYOND_FIRST: Final = 64 << 20
"""Likewise with dynamic sizes above 1: a model may need much more memory than its input."""
_SIZES: Final = (1, 2, 3, 4, 8, 16, 32, 64, 224)
"""Sizes of dynamic dimensions to try; 224 is the usual side of an image."""
_RANKS: Final = (1, 2, 3, 4, 0)
"""Ranks to try where the rank is unknown."""


class Fill(enum.Enum):
    """Elements of synthetic inputs; strings are ``sample`` or the number."""

    RANDOM = "sample"
    ONES = "1"
    ZEROS = "0"


@dataclass(frozen=True, slots=True)
class SyntheticCandidate:
    """Synthetic inputs to try.

    Attributes:
        size: Size of dynamic dimensions.
        leading: Size of the first dimension, if it is dynamic.
        rank: Rank of inputs of unknown rank, whose dimensions are all dynamic.
    """

    size: int = 1
    leading: int = 1
    fill: Fill = Fill.RANDOM
    rank: int = 1


class Synthesiser:
    """Generates inputs for a model without a sample set.

    A model may accept only some of the inputs that its tensors allow: sequences of at least two
    elements, images of at least 32 pixels, strings that are numbers.
    """

    def __init__(self, inputs: Sequence[TensorSpec]) -> None:
        self._inputs = {spec: dtype_of(spec) for spec in inputs}

    def candidates(self) -> Iterator[SyntheticCandidate]:
        """Yield the inputs to try, the most usual ones first."""
        shapes = {spec.shape for spec in self._inputs}
        ranks = _RANKS if UNKNOWN_RANK in shapes else _RANKS[:1]
        is_dynamic = UNKNOWN_RANK in shapes or any(-1 in shape for shape in shapes)
        for size in _SIZES if is_dynamic else _SIZES[:1]:
            # A single query usually has a batch of one.
            for leading, rank in product(dict.fromkeys((1, size)), ranks):
                candidate = SyntheticCandidate(size, leading, rank=rank)
                limit = MAX_BYTES if size == 1 else _MAX_BYTES_BEYOND_FIRST
                if max(_size_bytes(*each, candidate) for each in self._inputs.items()) <= limit:
                    yield from (replace(candidate, fill=fill) for fill in Fill)

    def generate(
        self, candidate: SyntheticCandidate, count: int, seed: int = 0
    ) -> list[dict[str, Array]]:
        """Return `count` seeded samples, each an array per input."""
        for spec, dtype in self._inputs.items():
            if _size_bytes(spec, dtype, candidate) > MAX_BYTES:
                raise InvalidInput(
                    f"input {spec.name} {list(_shape(spec, candidate))} is too large for synthetic "
                    "samples"
                )
        generator = np.random.default_rng(seed)
        return [
            {
                spec.name: _generate(_shape(spec, candidate), dtype, candidate.fill, generator)
                for spec, dtype in self._inputs.items()
            }
            for _ in range(count)
        ]


def _shape(spec: TensorSpec, candidate: SyntheticCandidate) -> tuple[int, ...]:
    shape = (-1,) * candidate.rank if spec.shape == UNKNOWN_RANK else spec.shape
    sizes = (candidate.leading, *(candidate.size for _ in shape[1:]))
    return tuple(size if given == -1 else given for given, size in zip(shape, sizes, strict=False))


def _size_bytes(spec: TensorSpec, dtype: np.dtype[Any], candidate: SyntheticCandidate) -> float:
    """Return the size of an input; of strings, that of their pointers."""
    elements = np.prod(_shape(spec, candidate), dtype=np.float64)
    return float(elements) * dtype.itemsize


def _generate(
    shape: tuple[int, ...], dtype: np.dtype[Any], fill: Fill, generator: np.random.Generator
) -> Array:
    if dtype.hasobject:
        return np.full(shape, fill.value.encode(), dtype)
    if fill is not Fill.RANDOM:
        number = int(fill.value)
        if dtype is BFLOAT16_BITS:  # the upper half of a float
            number = int(np.float32(number).view(np.uint32)) >> 16
        return np.full(shape, number, dtype)
    if dtype.kind == "f":
        return generator.random(shape).astype(dtype)
    # Wide integers are mostly indices into a table of unknown size; 0 and 1 are safe.
    high = 256 if dtype == np.uint8 else 2
    return generator.integers(0, high, shape).astype(dtype)


def dtype_of(spec: TensorSpec) -> np.dtype[Any]:
    """Return the NumPy dtype of an input."""
    try:
        return DTYPES[spec.datatype]
    except KeyError:
        raise InvalidInput(
            f"input {spec.name} is {spec.datatype}, for which there is no NumPy dtype"
        ) from None


def to_bytes(array: Array) -> Array:
    """Return an array of strings as one of ``bytes`` objects, text as UTF-8."""
    array = np.char.encode(array, "utf-8") if array.dtype.kind == "U" else array
    return array.astype(object)
