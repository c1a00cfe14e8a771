"""An engine's sample set, used for jobs' queries and for profiling.

A ``samples.npz`` has one array per input of the engine, named after the input, with the samples
along its leading axis; and optionally ``labels``, the correct class of each sample. If an array's
rank is one more than the input's, or that is unknown, sample *i* is ``array[i]``; if the ranks are
equal, it is the batch of one ``array[i : i + 1]``.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from synergai.domain import UNKNOWN_RANK
from synergai.errors import InvalidInput
from synergai.models.formats.model_files import SAMPLES_FILE
from synergai.models.synthetic import Synthesiser, SyntheticCandidate, dtype_of, to_bytes
from synergai.wire.validation import shape_matches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
