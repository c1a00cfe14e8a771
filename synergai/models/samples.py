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
from synergai.models.formats.model_files import DEFINITION_FILE, SAMPLES_FILE
from synergai.wire.arrays import BFLOAT16_BITS, DTYPES
from synergai.wire.validation import shape_matches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from synergai.domain import TensorSpec
    from synergai.models.definition import WarmUpInput
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
        return random_samples(inputs, definition.warmup)
    where = f"{definition.name}/{definition.samples.name}"
    arrays = _read_arrays(where, definition.samples)
    labels = arrays.pop(LABELS, None)
    return _build_samples(where, inputs, arrays, labels)


def write_samples(folder: Path, arrays: Mapping[str, Array]) -> None:
    """Write a sample set into an engine's folder; for the arrays see the module."""
    with (folder / SAMPLES_FILE).open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def random_samples(
    inputs: Sequence[TensorSpec], warmup: Mapping[str, WarmUpInput] | None = None
) -> Samples:
    """Return seeded samples of the right dtypes and shapes, with the shapes and values of `warmup`.

    Dynamic dimensions without a given size become 1.
    """
    return Samples(Synthesiser(inputs, warmup).generate(SyntheticCandidate(), RANDOM_SAMPLES))


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

    def __init__(
        self, inputs: Sequence[TensorSpec], warmup: Mapping[str, WarmUpInput] | None = None
    ) -> None:
        names = [spec.name for spec in inputs]
        warmup = warmup or {}
        for name in warmup:
            if name not in names:
                raise InvalidInput(
                    f"{DEFINITION_FILE}: warmup has an entry for {name!r}, but the engine "
                    f"takes {', '.join(sorted(names))}"
                )
        self._inputs = [_Input(spec, warmup.get(spec.name)) for spec in inputs]

    def candidates(self) -> Iterator[SyntheticCandidate]:
        """Yield the inputs to try, the most usual ones first."""
        dynamic = any(each.is_dynamic for each in self._inputs)
        ranks = _RANKS if any(each.has_unknown_rank for each in self._inputs) else _RANKS[:1]
        for size in _SIZES if dynamic else _SIZES[:1]:
            # A single query usually has a batch of one.
            for leading, rank in product(dict.fromkeys((1, size)), ranks):
                candidate = SyntheticCandidate(size, leading, rank=rank)
                limit = MAX_BYTES if size == 1 else _MAX_BYTES_BEYOND_FIRST
                if max(each.size_bytes(candidate) for each in self._inputs) <= limit:
                    yield from (replace(candidate, fill=fill) for fill in Fill)

    def generate(
        self, candidate: SyntheticCandidate, count: int, seed: int = 0
    ) -> list[dict[str, Array]]:
        """Return `count` seeded samples, each an array per input."""
        for each in self._inputs:
            if each.size_bytes(candidate) > MAX_BYTES:
                raise InvalidInput(
                    f"input {each.spec.name} {list(each.shape(candidate))} is too large for "
                    "synthetic samples"
                )
        generator = np.random.default_rng(seed)
        return [
            {each.spec.name: each.generate(candidate, generator) for each in self._inputs}
            for _ in range(count)
        ]


class _Input:
    """One input of the model, and the values given for it."""

    def __init__(self, spec: TensorSpec, given: WarmUpInput | None) -> None:
        self.spec = spec
        self._dtype = dtype_of(spec)
        self._shape = spec.shape
        self._element: Array | None = None
        if given is None:
            return
        if given.shape is not None:
            self._shape = given.shape
        if self._shape != spec.shape and not shape_matches(self._shape, spec.shape):
            raise InvalidInput(
                f"{DEFINITION_FILE}: warmup.{spec.name} has the shape {list(self._shape)}, but "
                f"the engine takes {list(spec.shape)}"
            )
        if given.value is not None:
            self._element = _element(spec, given.value, self._dtype)

    @property
    def is_dynamic(self) -> bool:
        """Whether the candidate determines a size."""
        return -1 in self._shape or self.has_unknown_rank

    @property
    def has_unknown_rank(self) -> bool:
        """Whether the candidate determines the number of dimensions."""
        return self._shape == UNKNOWN_RANK

    def shape(self, candidate: SyntheticCandidate) -> tuple[int, ...]:
        """Return the shape of the input in `candidate`."""
        shape = (-1,) * candidate.rank if self.has_unknown_rank else self._shape
        sizes = (candidate.leading, *(candidate.size for _ in shape[1:]))
        return tuple(
            size if given == -1 else given for given, size in zip(shape, sizes, strict=False)
        )

    def size_bytes(self, candidate: SyntheticCandidate) -> float:
        """Return the size of the input in `candidate`; of strings, that of their pointers."""
        elements = np.prod(self.shape(candidate), dtype=np.float64)
        return float(elements) * self._dtype.itemsize

    def generate(self, candidate: SyntheticCandidate, generator: np.random.Generator) -> Array:
        """Return the input."""
        shape, dtype = self.shape(candidate), self._dtype
        if self._element is not None:
            return _full(shape, self._element, dtype)
        if candidate.fill is not Fill.RANDOM or dtype.hasobject:
            text = candidate.fill.value
            value = text if dtype.hasobject else int(text)
            return _full(shape, _element(self.spec, value, dtype), dtype)
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


def _full(shape: tuple[int, ...], element: Array, dtype: np.dtype[Any]) -> Array:
    array = np.empty(shape, dtype)
    array[...] = element
    return array


def _element(spec: TensorSpec, value: bool | float | str, dtype: np.dtype[Any]) -> Array:
    refused = InvalidInput(
        f"{DEFINITION_FILE}: warmup.{spec.name} has the value {value!r}, but the engine takes "
        f"{spec.datatype}"
    )
    if isinstance(value, str) != dtype.hasobject:
        raise refused
    if isinstance(value, str):
        return np.array(value.encode(), dtype=object)
    if dtype is BFLOAT16_BITS:  # the upper half of a float
        return np.asarray(np.float32(value).view(np.uint32) >> 16).astype(dtype)
    with np.errstate(all="ignore"):
        try:
            element = np.array(value).astype(dtype)
        except OverflowError:
            raise refused from None
    if dtype.kind != "f" and element.item() != value:
        raise refused
    return element
