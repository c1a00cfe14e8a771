"""Self-check of a loaded model: finds samples that it computes, and warms it up with them.

A model without a sample set is tried with synthetic inputs. If it accepts none, its tensors say
less than it requires, and the engine is served unverified: a loaded model is not broken.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.errors import OutOfMemory, SynergaiError
from synergai.models.formats.model_files import SAMPLES_FILE
from synergai.models.samples import RANDOM_SAMPLES, Samples, load_samples
from synergai.models.synthetic import Synthesiser
from worker_agent.backends import JobAware

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from synergai.models.directory import EngineDefinition
    from worker_agent.backends import Array, Backend

_WARM_UP_RUNS: Final = 3
_WARM_UP_S: Final = 1.0
_COLD_S: Final = 3.0
"""A first run up to this time may be that of a cold model, so that another one follows."""
_SEARCH_S: Final = 2.0
"""No further input is tried after this time; every load of an unverified engine takes it."""
_MAX_REASON_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class CheckedSession:
    """Result of the check; `unverified` says why the model is not known to work."""

    samples: Samples
    unverified: str
    run_s: float
    query_s: float


class SelfCheck:
    """Runs a model for the first time."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self._outputs = [spec.name for spec in backend.outputs]
        self._run_s = 0.0
        self._query_s = math.inf

    def run(self, definition: EngineDefinition) -> CheckedSession:
        """Check and warm up the model with its sample set, or with synthetic inputs."""
        if definition.samples is None:
            samples, unverified = self._search(definition)
        else:
            samples = load_samples(definition, self._backend.inputs)
            error = self._try(samples.inputs[0])
            unverified = error and f"the model fails on its {SAMPLES_FILE}: {error}"
        if not unverified:
            self._warm_up(samples.inputs[0])
        query_s = 0.0 if unverified else self._query_s
        return CheckedSession(samples, unverified, self._run_s, query_s)

    def _search(self, definition: EngineDefinition) -> tuple[Samples, str]:
        """Return samples that the model accepts; none, and the reason, if there are no such."""
        synthesiser = Synthesiser(self._backend.inputs, definition.warmup)
        give_up_at = self._clock() + _SEARCH_S
        first_error = ""
        for candidate in synthesiser.candidates():
            (sample,) = synthesiser.generate(candidate, 1)
            error = self._try(sample)
            if not error:
                return Samples(synthesiser.generate(candidate, RANDOM_SAMPLES)), ""
            first_error = first_error or error
            if self._clock() > give_up_at:
                break
        if not first_error:
            return Samples([]), "its inputs are too large for synthetic samples"
        inputs = "[warmup] inputs" if definition.warmup else "synthetic inputs"
        return Samples([]), f"the model fails on {inputs}: {first_error}"

    def _try(self, sample: Mapping[str, Array]) -> str:
        """Run one query; return why it failed, or an empty text."""
        if isinstance(self._backend, JobAware):
            self._backend.begin_job("")
        begin = self._clock()
        try:
            self._backend.run(sample, self._outputs)
        except OutOfMemory:
            raise
        except SynergaiError as error:
            text = str(error)
            return text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}…"
        except Exception as error:  # noqa: BLE001 - a model may fail in any way
            return f"{type(error).__name__} in the backend"
        finally:
            seconds = self._clock() - begin
            self._run_s += seconds
        self._query_s = min(self._query_s, seconds)
        return ""

    def _warm_up(self, sample: Mapping[str, Array]) -> None:
        """Run a few more queries; the first ones are slower while the runtime allocates."""
        for number in range(_WARM_UP_RUNS - 1):
            if self._run_s > (_WARM_UP_S if number else _COLD_S):
                return
            self._try(sample)
