"""Loading of an engine, or of one variant after another, into an engine host.

All variants of an engine have the same inputs, outputs and sample set. Each has a model of its own,
and may have a backend of its own.
"""

from __future__ import annotations

import logging
import math
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from synergai.domain import Engine
from synergai.errors import BackendMissing, EngineUnusable, InvalidInput, OutOfMemory, SynergaiError
from synergai.models.directory import EngineDefinition, ModelDirectory
from synergai.models.formats.inspect import check
from synergai.models.formats.model_files import SAMPLES_FILE, has_signatures
from synergai.models.samples import RANDOM_SAMPLES, Samples, Synthesiser, load_samples
from synergai.runtime.text import pip_install
from worker_agent.backends import BACKENDS, Interruptible, JobAware
from worker_agent.cpu_affinity import restrict_to, thread_cores
from worker_agent.host.batches import BatchLimit, BatchMemory, check_batchable
from worker_agent.host.processing import Processing, check_exit
from worker_agent.host.query_codec import QueryCodec
from worker_agent.ipc import Arena, LoadFailed, Ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from worker_agent.backends import Array, Backend
    from worker_agent.providers import ProviderChoice


# A model without a sample set is tried with synthetic inputs. If it accepts none, its tensors say
# less than it requires, and the engine is served unverified: a loaded model is not broken.

_WARM_UP_RUNS: Final = 3
_WARM_UP_S: Final = 1.0
_COLD_S: Final = 3.0
"""A first run up to this time may be that of a cold model, so that another one follows."""
_SEARCH_S: Final = 2.0
"""No further input is tried after this time; every load of an unverified engine takes it."""
_MAX_REASON_CHARS: Final = 300

_log: Final = logging.getLogger(__name__)


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
            samples, unverified = self._search()
        else:
            samples = load_samples(definition, self._backend.inputs)
            error = self._try(samples.inputs[0])
            unverified = error and f"the model fails on its {SAMPLES_FILE}: {error}"
        if not unverified:
            self._warm_up(samples.inputs[0])
        query_s = 0.0 if unverified else self._query_s
        return CheckedSession(samples, unverified, self._run_s, query_s)

    def _search(self) -> tuple[Samples, str]:
        """Return samples that the model accepts; none, and the reason, if there are no such."""
        synthesiser = Synthesiser(self._backend.inputs)
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
        return Samples([]), f"the model fails on synthetic inputs: {first_error}"

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


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, and what its queries need."""

    engine: Engine
    backend: Backend
    samples: Samples
    processing: Processing
    codec: QueryCodec
    outputs: list[str]
    job_aware: JobAware | None
    interruptible: Interruptible | None
    batch_limit: BatchLimit
    batch_memory: BatchMemory = field(default_factory=BatchMemory)


class ModelLoader:
    """Loads models of one engine."""

    def __init__(
        self,
        models: Path,
        engine: str,
        threads: int,
        provider: ProviderChoice | None,
        arena: Arena,
    ) -> None:
        self._models = models
        self._name = engine
        self._threads = threads
        self._provider = provider
        self._arena = arena
        self._cores = os.sched_getaffinity(0)

    def load(self, variant: str, since: float) -> tuple[LoadedModel | None, Ready | LoadFailed]:
        """Load the engine or one variant of it; return what to report, and no model if that fails.

        All variants have the same tensors: the agent has inspected them.
        """
        try:
            with self._all_cores():
                return self._load(variant, since)
        except SynergaiError as error:
            missing, lacking = (isinstance(error, each) for each in (BackendMissing, OutOfMemory))
            return None, LoadFailed(str(error), missing, variant, lacking)
        except Exception:  # noqa: BLE001 - a model file may cause any error; report it to the agent
            what = f"{self._name!r}{f', variant {variant}' if variant else ''}"
            _log.exception("cannot load %s", what)
            return None, LoadFailed(
                f"engine {what} failed to load; see the worker's log", variant=variant
            )

    def _load(self, variant: str, since: float) -> tuple[LoadedModel, Ready]:
        whole = ModelDirectory(self._models).get(self._name)
        if whole.fault:
            raise EngineUnusable(f"engine {self._name!r}: {whole.fault}")
        definition = whole.of_variant(variant)
        # A session of an engine with variants that names none has the first one.
        answering = variant or (whole.variants[0].name if whole.variants else "")
        make_backend = self._backend_of(definition)
        started = time.monotonic()
        digest = definition.verified_digest()
        backend = make_backend()
        loaded = time.monotonic()
        checked = SelfCheck(backend).run(definition)
        prepared = time.monotonic()
        if self._provider is not None and checked.unverified:
            # It may be the provider that computes nothing; the CPU has been tried already.
            raise EngineUnusable(
                f"{self._provider} does not compute engine {self._name!r}: {checked.unverified}"
            )
        engine = _loaded_engine(definition, backend, checked, digest)
        check_exit(engine)
        check_batchable(engine)
        processing = Processing(engine, backend, self._threads)
        model = LoadedModel(
            engine=engine,
            backend=backend,
            samples=checked.samples,
            processing=processing,
            codec=QueryCodec(self._arena, engine, processing, checked.samples, answering),
            outputs=[spec.name for spec in engine.outputs],
            job_aware=backend if isinstance(backend, JobAware) else None,
            interruptible=backend if isinstance(backend, Interruptible) else None,
            batch_limit=BatchLimit(engine.max_batch),
        )
        ready = Ready(
            inputs=engine.inputs,
            outputs=engine.outputs,
            samples=engine.samples,
            max_batch=engine.max_batch,
            unverified=engine.unverified,
            query_s=checked.query_s,
            backend_start_s=started - since,
            model_load_s=loaded - started + checked.run_s,
            data_preparation_s=prepared - loaded - checked.run_s,
            variant=variant,
        )
        return model, ready

    def _backend_of(self, definition: EngineDefinition) -> Callable[[], Backend]:
        """Return what loads a model into its backend, which is imported now."""
        name, kind, provider = self._name, definition.backend, self._provider
        if provider is not None and kind not in provider.details.backends:
            raise EngineUnusable(
                f"{provider} runs no engines of the backend {kind!r}, such as {name!r}"
            )
        # Checked before the runtime is imported, which takes seconds and trusts the file.
        try:
            check(definition.file, definition.signature)
        except InvalidInput as error:
            raise EngineUnusable(str(error)) from None
        try:
            factory = BACKENDS.get(kind)
        except ModuleNotFoundError as error:
            raise BackendMissing(
                f"engine {name!r} needs the backend {kind!r}, which is not installed here; "
                f"{pip_install(kind)}"
            ) from error
        except ImportError as error:
            raise BackendMissing(
                f"engine {name!r} needs the backend {kind!r}, which cannot be imported here: "
                f"{' '.join(str(error).split())[:500]}"
            ) from error
        chosen = {
            "inputs": definition.inputs,
            "outputs": definition.outputs,
            "signature": definition.signature if has_signatures(definition.file) else "",
        }
        given: dict[str, Any] = {key: value for key, value in chosen.items() if value}
        if provider is not None:
            given["provider"] = provider
        return partial(factory, definition.file, self._threads, **given)

    @contextmanager
    def _all_cores(self) -> Iterator[None]:
        """Allow all cores in this block, and then only the first one of several threads."""
        if os.sched_getaffinity(0) != self._cores:
            restrict_to(self._cores)
        cores = thread_cores(self._threads)
        try:
            yield
        finally:
            if cores:
                restrict_to(cores[:1])


def _loaded_engine(
    definition: EngineDefinition, backend: Backend, checked: CheckedSession, digest: str
) -> Engine:
    return Engine(
        name=definition.name,
        version=definition.version,
        backend=definition.backend,
        inputs=backend.inputs,
        outputs=backend.outputs,
        digest=digest,
        samples=len(checked.samples),
        unverified=checked.unverified,
        preprocess=definition.preprocess,
        postprocess=definition.postprocess,
        max_batch=definition.max_batch,
        exit=definition.exit,
    )
