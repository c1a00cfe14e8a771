"""Runtimes behind one small protocol; each is imported only in the host that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable

from synergai.runtime.plugins import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from synergai.domain import TensorSpec
    from synergai.models.quantisation import Quantisation

    Array: TypeAlias = NDArray[Any]


class Backend(Protocol):
    """One model in one runtime, made as ``factory(path, threads)``.

    The factory raises `EngineUnusable`, in one line for people, if the model at `path` cannot
    be loaded. `threads` is the number of intra-op threads, at least 1. Where a definition names
    a frozen graph's tensors, they follow as ``inputs=…`` and ``outputs=…``.

    Arrays are NumPy's of the datatype's own dtype; BYTES are object arrays of ``bytes``.
    """

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What the model takes, read from the model itself."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What the model gives, read from the model itself."""

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Compute the named outputs, in that order, for one query.

        Raises:
            InvalidInput: the runtime finds the inputs impossible.
            EngineUnusable: the runtime fails for another reason.
        """


@runtime_checkable
class JobAware(Protocol):
    """A backend that is told whose queries it is going to run."""

    def begin(self, job: str) -> None:
        """The queries that follow are of `job`; empty if they are nobody's in particular."""


class Interrupted(Exception):
    """What `Backend.run` raises when it was interrupted."""


@runtime_checkable
class Interruptible(Protocol):
    """A backend that can give up a query while it computes."""

    def interrupt(self) -> None:
        """Have the query that computes end with `Interrupted`; called from another thread."""

    def resume(self) -> None:
        """The interrupted query is over, however it ended; compute the next ones again."""


@runtime_checkable
class Quantised(Protocol):
    """A backend whose model may take or give integers that stand for real numbers."""

    @property
    def quantisations(self) -> Mapping[str, Quantisation]:
        """Of the quantised inputs and outputs, by name."""


BACKENDS: Final = Registry[Backend](
    "synergai.backends",
    {
        "emulated": "worker_agent.backends.emulated:EmulatedBackend",
        "onnxruntime": "worker_agent.backends.onnxruntime:OnnxRuntimeBackend",
        "tensorflow": "worker_agent.backends.tensorflow:TensorflowBackend",
        "tflite": "worker_agent.backends.tflite:TfliteBackend",
    },
)
