"""Tells LoadGen that samples are complete, and what was answered to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlperf_loadgen
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.loadgen.library import SampleLibrary

EMPTY_RESPONSE = b""
"""A sample that failed is complete as well: LoadGen would wait for it for ever."""


class Completion:
    """Completes samples.

    Args:
        library: says what an answer is worth, if answers are kept; None if only time counts.
    """

    def __init__(self, library: SampleLibrary | None) -> None:
        self._library = library

    @property
    def keeps_answers(self) -> bool:
        """Whether anybody looks at the outputs."""
        return self._library is not None

    def kept(self, index: int, outputs: Mapping[str, NDArray[Any]]) -> bytes:
        """What is kept of a sample's outputs."""
        return EMPTY_RESPONSE if self._library is None else self._library.answer(index, outputs)

    def complete(self, answered: Sequence[tuple[int, bytes]]) -> None:
        """Complete samples, with what is kept of their answers, by LoadGen's ids."""
        # LoadGen copies the bytes; until it has, these arrays keep them where they are.
        kept = [np.frombuffer(data, np.uint8) for _, data in answered]
        mlperf_loadgen.QuerySamplesComplete(
            [
                mlperf_loadgen.QuerySampleResponse(sample_id, data.ctypes.data, data.nbytes)
                for (sample_id, _), data in zip(answered, kept, strict=True)
            ]
        )
