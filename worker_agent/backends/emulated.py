"""Emulated engine: takes the time that a query would take on other hardware and echoes its input.

It allows experiments with fleets that are not available; everything but the computation is real.
The model file is TOML, with times in seconds::

    model = "model.onnx"  # optional: computes the answers, faster than the times below
    input = {name = "image", values = 150528}  # per row; default: "x", any number
    output = {name = "cut1", values = 4096}  # zeros; default: "y", the input

    [[configurations]]
    threads = 4          # threads of the session; 0 with a provider
    provider = ""        # name of the session's execution provider; empty for the CPU
    query_s = 0.00042    # duration of one query
    row_s = 0.0001       # of each further row of a batch; default: 0
    setup_s = 0.27       # from the start of the process until the engine is ready
    most_rows = 64       # larger batches lack memory; default: no limit

An optional file ``paces.txt`` next to it scales the durations of single jobs, in lines of the form
``JOB FACTOR``. If the file exists, the engine waits briefly for the line of an unlisted job: the
submitter learns the id of a job only when it may already be running.

As long as there is a file ``slowdown.txt`` next to it, all queries take as many times as long as it
says, as if other work ran on the same cores.

Without ``model`` and ``output``, the engine echoes its input. With a model, the answers are those
of this ONNX model, next to the file, and computing them is part of the duration of a query.

The job that a setup belongs to is known only after the setup. The difference between the job's
scaled setup time and the actual one, positive or negative, is applied to the job's first queries.
"""

from __future__ import annotations

import threading
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct

from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable, InvalidInput, OutOfMemory
from synergai.runtime.resources import age_s
from synergai.runtime.toml_file import read_toml
from worker_agent.backends import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from worker_agent.backends import Array, Backend
    from worker_agent.providers import ProviderChoice

PACES_FILE: Final = "paces.txt"
SLOWDOWN_FILE: Final = "slowdown.txt"
LEAD_S: Final = 0.001
"""Lead over the schedule from which to sleep; shorter sleeps cost too much."""
PATIENCE_S: Final = 0.25
"""Time to wait for the pace of an unlisted job."""
_POLL_S: Final = 0.001
_SETUP_JOB_S: Final = 0.05
"""The engine was loaded for a job that begins within this time after the setup."""

_Seconds = Annotated[float, Meta(ge=0, le=1e9)]


class _Times(Struct, frozen=True, kw_only=True):
    """A configuration, with the times of a query, of each further row of it, and of the setup."""

    threads: int = 0
    provider: str = ""
    query_s: _Seconds
    row_s: _Seconds = 0.0
    setup_s: _Seconds
    most_rows: int = 0


class _Tensor(Struct, frozen=True):
    name: str
    values: int | None = None

    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, "FP32", (-1,) if self.values is None else (-1, self.values))


class _ModelFile(Struct, frozen=True, kw_only=True):
    configurations: tuple[_Times, ...]
    model: str = ""
    input: _Tensor = _Tensor("x")
    output: _Tensor = _Tensor("y")


_first_age_s: Final = cache(age_s)


def _age_s() -> float:
    """Return the age of the process; 0 for all models but the first one, which began later."""
    return 0.0 if _first_age_s.cache_info().currsize else _first_age_s()


class EmulatedBackend:
    """A ``worker_agent.backends.Backend``, `JobAware` and `Interruptible`.

    Queries follow an absolute schedule: a query that ends late shortens the next ones.
    """

    def __init__(
        self,
        path: Path,
        threads: int,
        provider: ProviderChoice | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
        age_s: Callable[[], float] = _age_s,
    ) -> None:
        try:
            file = read_toml(path, _ModelFile, path.name)
        except InvalidInput as error:
            raise EngineUnusable(str(error)) from error
        self._times = _times(file, path, threads, provider)
        self._model = _load_model(file, path)
        if self._model is not None:
            self.inputs, self.outputs = self._model.inputs, self._model.outputs
        else:
            self.inputs, self.outputs = (file.input.spec(),), (file.output.spec(),)
        self._slowdown_file = path.parent / SLOWDOWN_FILE
        self._paces_file = path.parent / PACES_FILE
        self._paces: dict[str, float] = {}
        self._clock = clock
        self._interrupted = threading.Event()
        self._sleep = sleep or self._interrupted.wait
        elapsed_s = age_s()
        if elapsed_s < self._times.setup_s:
            self._sleep(self._times.setup_s - elapsed_s)
        self._actual_setup_s = max(elapsed_s, self._times.setup_s)
        self._current_pace = 1.0
        self._due = clock()
        self._setup_job_until = self._due + _SETUP_JOB_S

    def begin_job(self, job: str) -> None:
        """Use the pace of `job` for the following queries; empty for single requests."""
        now = self._clock()
        self._due = max(self._due, now)
        pace = self._pace(job) if job else 1.0
        self._current_pace = pace
        if job and now < self._setup_job_until:
            self._due += pace * self._times.setup_s - self._actual_setup_s
        self._setup_job_until = now

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Return the model's outputs, zeros or the input, after the batch's duration."""
        given = len(next(iter(inputs.values())))
        rows = given if self._times.row_s or self._times.most_rows else 1
        if self._times.most_rows and rows > self._times.most_rows:
            raise OutOfMemory(f"the emulated memory holds {self._times.most_rows} rows, not {rows}")
        if self._model is None:
            values = self.outputs[0].shape[1:]
            array = (
                np.zeros((given, *values), np.float32) if values else inputs[self.inputs[0].name]
            )
            answer = [array for _ in outputs]
        else:
            answer = self._model.run(inputs, outputs)
        pace = self._current_pace * self._slowdown()
        self._due += pace * (self._times.query_s + (rows - 1) * self._times.row_s)
        ahead_s = self._due - self._clock()
        if ahead_s >= LEAD_S:
            self._sleep(ahead_s)
        if self._interrupted.is_set():
            self._due = self._clock()
            raise Interrupted
        return answer

    def interrupt(self) -> None:
        self._interrupted.set()

    def resume(self) -> None:
        self._interrupted.clear()

    def _slowdown(self) -> float:
        try:
            return float(self._slowdown_file.read_text("utf-8"))
        except (FileNotFoundError, ValueError):  # or it is just being written
            return 1.0

    def _pace(self, job: str) -> float:
        """Return the factor on the durations of the job's queries."""
        give_up_at = self._clock() + PATIENCE_S
        while job not in self._paces and self._paces_file.exists():
            self._paces = _read_paces(self._paces_file)
            if self._clock() >= give_up_at:
                break
            if job not in self._paces:
                self._sleep(_POLL_S)
        return self._paces.get(job, 1.0)


def _load_model(file: _ModelFile, path: Path) -> Backend | None:
    """Return the model that computes the answers; None if the input is echoed."""
    if not file.model:
        return None
    if Path(file.model).name != file.model:
        raise EngineUnusable(f"{path.name}: model must name an ONNX file in the same folder")
    # Imported here, because echoing needs no runtime.
    from worker_agent.backends.onnxruntime import OnnxRuntimeBackend

    return OnnxRuntimeBackend(path.parent / file.model, threads=1)


def _times(file: _ModelFile, path: Path, threads: int, provider: ProviderChoice | None) -> _Times:
    name = "" if provider is None else provider.name
    for each in file.configurations:
        if each.provider == name and (name or each.threads == threads):
            return each
    what = f"provider {name}" if name else f"{threads} threads"
    raise EngineUnusable(f"{path.name} has no configuration with {what}")


def _read_paces(path: Path) -> dict[str, float]:
    paces = {}
    # The last line may be incomplete while the file is being written.
    for line in path.read_text("utf-8").split("\n")[:-1]:
        job, _, factor = line.partition(" ")
        try:
            paces[job] = msgspec.convert(factor, _Seconds, strict=False)
        except msgspec.ValidationError as error:
            raise EngineUnusable(f"{path.name}: expected JOB FACTOR, got {line!r}") from error
    return paces
