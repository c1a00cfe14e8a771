"""Completion of LoadGen's samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlperf_loadgen
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from profiler.loadgen.library import SampleLibrary

EMPTY_RESPONSE = b""
"""Response of a failed sample, which must be completed too: LoadGen waits for every sample."""


class SampleCompleter:
    """Reports completed samples to LoadGen.

    Args:
        library: encodes responses for the accuracy log; None in performance mode, which logs none.
    """

    def __init__(self, library: SampleLibrary | None) -> None:
        self._library = library

    @property
    def logs_responses(self) -> bool:
        """Whether responses are logged."""
        return self._library is not None

    def encode(self, index: int, outputs: Mapping[str, NDArray[Any]]) -> bytes:
        """Return the bytes to log for a sample's outputs."""
        if self._library is None:
            return EMPTY_RESPONSE
        return self._library.encode_response(index, outputs)

    def complete(self, responses: Sequence[tuple[int, bytes]]) -> None:
        """Complete samples given by LoadGen's ids, each with the bytes to log."""
        # LoadGen copies the bytes during the call; these arrays keep them in place until then.
        buffers = [np.frombuffer(data, np.uint8) for _, data in responses]
        mlperf_loadgen.QuerySamplesComplete(
            [
                mlperf_loadgen.QuerySampleResponse(sample_id, buffer.ctypes.data, buffer.nbytes)
                for (sample_id, _), buffer in zip(responses, buffers, strict=True)
            ]
        )
