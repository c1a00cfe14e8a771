"""Self-checks of engines for ``synergai engines``, which loads them as an agent does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from profiler.measuring.host_client import HostClient
from synergai.domain import Configuration, EngineName, Outcome, Session
from synergai.errors import BackendMissing, EngineUnusable, Unavailable
from synergai.models.definition import ADVICE
from synergai.models.descriptions import EngineDescription
from synergai.oip.inference_pb2 import ModelInferRequest, ModelInferResponse
from synergai.runtime.text import printable
from synergai.wire.arrays import read_outputs
from synergai.wire.validation import LABEL, SAMPLE

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from profiler.model_description import ModelDescription


_TIMEOUT_S: Final = 300.0


def check_engine(models: Path, name: str) -> EngineDescription:
    """Load an engine once and describe it."""
    session = Session(EngineName(name), Configuration(1))
    try:
        with HostClient(models, session, timeout=_TIMEOUT_S) as host:
            ready = host.ready
    except Unavailable as error:
        raise EngineUnusable(f"engine {name!r} cannot be loaded: {error}") from None
    return EngineDescription(
        ready.inputs, ready.outputs, ready.samples, printable(ready.unverified), ready.query_s
    )


def run_samples(
    models: Path, name: str
) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64] | None]:
    """Run an engine over all of its samples; return each output, [samples, …], and the labels."""
    session = Session(EngineName(name), Configuration(1))
    rows: dict[str, list[NDArray[Any]]] = {}
    labels: list[int] = []
    with HostClient(models, session, timeout=_TIMEOUT_S) as host:
        for number in range(host.ready.samples):
            request = ModelInferRequest()
            request.parameters[SAMPLE].int64_param = number
            ended, data = host.query(request.SerializeToString())
            if ended.outcome is Outcome.FAILED:
                raise EngineUnusable(f"engine {name!r} fails at sample {number}: {ended.detail}")
            response = ModelInferResponse.FromString(data)
            for output, array in read_outputs(response).items():
                rows.setdefault(output, []).append(array)
            if LABEL in response.parameters:
                labels.append(response.parameters[LABEL].int64_param)
    joined = {output: np.concatenate(arrays) for output, arrays in rows.items()}
    return joined, np.array(labels, np.int64) if labels else None


class StagedChecks:
    """Loads staged engines as an agent does, and keeps the results."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._results: dict[str, str] = {}

    def __call__(self, models: Path, name: str, model: ModelDescription) -> None:
        result = self._check(models, name) if self._enabled else "not checked"
        self._results[name] = "\n".join((result, *model.contents.notes))

    def _check(self, models: Path, name: str) -> str:
        try:
            description = check_engine(models, name)
        except BackendMissing as error:
            return f"not checked: {error}"
        if description.unverified:
            return f"unverified: {description.unverified}\nTo verify it, {ADVICE}."
        return "checked"

    def result(self, name: str) -> str:
        return self._results[name]
