"""Early exits: a query leaves its engine behind a stage that is sure enough of its class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.errors import EngineUnusable
from synergai.wire.validation import DROP, EXIT, LEAVE, STAY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.domain import Engine, Exit
    from synergai.oip.inference_pb2 import ModelInferRequest
    from worker_agent.backends import Array


def check_exit(engine: Engine) -> None:
    """Check that a stage has the output that its exit names."""
    if engine.exit is None:
        return
    first, *tensors = engine.outputs
    if first.name != engine.exit.output or first.datatype != "FP32" or not tensors:
        raise EngineUnusable(
            f"engine {engine.name!r}: the output of its exit, {engine.exit.output!r}, has to be "
            "its first output, 32-bit floats, and there has to be one for the next stage"
        )


class EarlyExit:
    """The early exit of a loaded stage."""

    def __init__(self, exit_: Exit, engine: Engine) -> None:
        self._threshold = exit_.threshold
        self._outputs = [spec.name for spec in engine.outputs]

    def outputs_to_compute(self, request: ModelInferRequest) -> Sequence[str]:
        """Return the model outputs that a request needs: the answer, and what the next stage reads.

        The next stage may read the inputs of the engine instead.
        """
        answers_only = _asks(request, DROP) or _asks(request, LEAVE)
        return self._outputs[:1] if answers_only else self._outputs

    def choose(
        self, request: ModelInferRequest, computed: Mapping[str, Array]
    ) -> tuple[dict[str, Array], str]:
        """Return the answer of the engine, and the tensor behind which the query leaves.

        If it stays, return what the next stage reads, and no tensor.
        """
        answer, *tensors = self._outputs
        if self._leaves(request, computed[answer]):
            return {answer: computed[answer]}, tensors[0]
        return {name: computed[name] for name in tensors if name in computed}, ""

    def _leaves(self, request: ModelInferRequest, probabilities: Array) -> bool:
        """Return whether a query leaves; one with several rows does if each of them would."""
        if _asks(request, LEAVE) or _asks(request, STAY):
            return _asks(request, LEAVE)
        return bool(probabilities.max(axis=-1).min(initial=1.0) >= self._threshold)


def _asks(request: ModelInferRequest, what: str) -> bool:
    return EXIT in request.parameters and request.parameters[EXIT].string_param == what
