"""Inference runtimes behind one protocol; each is imported only in hosts that use it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from synergai.errors import EngineUnusable, OutOfMemory
from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.domain import TensorSpec
    from synergai.models.processing import Quantisation

    Array: TypeAlias = NDArray[Any]


class Backend(Protocol):
    """A model loaded in a runtime, created as ``factory(path, threads)``.

    `threads` is the number of intra-op threads, at least 1. With another execution provider than
    the CPU, the factory also receives ``provider=…``, a `ProviderChoice`. If the definition names
    the tensors of a frozen graph, it also receives ``inputs=…`` and ``outputs=…``; if it names the
    signature of a SavedModel or TFLite file, ``signature=…``. It raises
    `EngineUnusable`, with a one-line message, if the model at `path` cannot be loaded, and
    `OutOfMemory` if that may pass.

    Arrays have the dtype of their datatype; BYTES are object arrays of ``bytes``.
    """

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Input tensors, read from the model."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Output tensors, read from the model."""

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Compute the named outputs, in that order, for one query or batch.

        Raises:
            InvalidInput: the runtime rejects the inputs.
            OutOfMemory: it lacks memory for the query or the batch.
            EngineUnusable: the runtime fails for another reason.
        """


@runtime_checkable
class JobAware(Protocol):
    """A backend that is notified of the job that queries belong to."""

    def begin_job(self, job: str) -> None:
        """Announce that the following queries belong to `job`; empty for single requests."""


class Interrupted(Exception):
    """Raised by `Backend.run` when it is interrupted."""


@runtime_checkable
class Interruptible(Protocol):
    """A backend whose computation can be interrupted."""

    def interrupt(self) -> None:
        """Make the running computation raise `Interrupted`; called from another thread."""

    def resume(self) -> None:
        """Allow computations again after an interrupt, whether or not it took effect."""


@runtime_checkable
class Quantised(Protocol):
    """A backend whose model may have quantised inputs or outputs."""

    @property
    def quantisations(self) -> Mapping[str, Quantisation]:
        """Quantisation parameters of the quantised inputs and outputs, by name."""


BACKENDS: Final = Registry[Backend](
    "synergai.backends",
    {
        "emulated": "worker_agent.backends.emulated:EmulatedBackend",
        "onnxruntime": "worker_agent.backends.onnxruntime:OnnxRuntimeBackend",
        "tensorflow": "worker_agent.backends.tensorflow:TensorflowBackend",
        "tflite": "worker_agent.backends.tflite:TfliteBackend",
    },
)

_LACKS_MEMORY: Final = re.compile(
    r"out of memory|out_of_memory|bad_alloc|alloc_failed|memoryallocation"
    r"|(failed|unable|cannot) to allocate|cannot allocate memory|(insufficient|not enough) memory"
    r"|oom when allocating|bfcarena",
    re.IGNORECASE,
)
"""What runtimes, CUDA and its libraries say. They have no error class for it."""


def runtime_failure(message: str, error: Exception) -> EngineUnusable | OutOfMemory:
    """Return the error of a failure in the runtime: lack of memory passes, others do not."""
    if isinstance(error, MemoryError) or _LACKS_MEMORY.search(str(error)):
        return OutOfMemory(message)
    return EngineUnusable(message)
