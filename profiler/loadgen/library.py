"""Sample libraries: input samples of an engine, and the evaluation of its responses.

MLPerf's term is query sample library (QSL).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Accuracy of an engine's responses.

    Attributes:
        measure: name of the measure, such as ``top-1``.
    """

    measure: str
    value: float
    samples: int


class SampleLibrary(Protocol):
    """Samples by index, from 0."""

    @property
    def origin(self) -> str:
        """Human-readable description of their source."""

    @property
    def count(self) -> int:
        """Number of samples."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the outputs to request; empty for all."""

    @property
    def performance_count(self) -> int:
        """Number of samples held in memory at a time."""

    def load(self, indices: Sequence[int]) -> None:
        """Load samples into memory."""

    def unload(self, indices: Sequence[int]) -> None:
        """Drop samples from memory."""

    def inputs(self, index: int) -> Mapping[str, Array]:
        """Return the arrays of a loaded sample by input name."""

    def encode_response(self, index: int, outputs: Mapping[str, Array]) -> bytes:
        """Return the bytes that LoadGen's accuracy log stores for a sample's outputs."""

    def evaluate(self, log: Path) -> Accuracy | None:
        """Return the accuracy of the responses in an accuracy log; None without ground truth."""


ACCURACY_FILE: Final = "mlperf_log_accuracy.json"


def read_accuracy_log(path: Path, count: int) -> dict[int, bytes]:
    """Return the logged bytes by sample index."""
    try:
        entries = json.loads(path.read_text("utf-8"))
        responses = {int(entry["qsl_idx"]): bytes.fromhex(entry["data"]) for entry in entries}
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path} is not an accuracy log of LoadGen") from None
    if not responses:
        raise InvalidInput(f"{path} has no responses; LoadGen logs them in accuracy mode only")
    if not all(0 <= index < count for index in responses):
        raise InvalidInput(f"{path} is of another sample set: this one has {count:,} samples")
    return responses
