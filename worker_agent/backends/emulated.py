"""An engine that computes nothing, and takes the time that it would take on another machine.

For experiments with fleets that are not at hand: everything but the computation is real. The
model file is TOML, with times in seconds::

    [[configurations]]
    threads = 4          # what the session is asked for
    query_s = 0.00042    # one query
    setup_s = 0.27       # from the start of the process until the engine is ready

A file ``paces.txt`` beside it says of single jobs how many times longer they take: a line
``JOB FACTOR`` for each. Where there is such a file, a job that is not in it yet is waited for a
moment, since whoever submits a job learns its id only when it may already run.

The setup is over before the host hears for which job it was. What it should have taken longer is
then added to the job's first query, and what it took too long, as when a process needs more time
to start than the whole setup should take, the job's first queries make up for.
"""

from __future__ import annotations

import math
import os
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from synergai.domain import TensorSpec
from synergai.errors import EngineUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from worker_agent.backends import Array

PACES_FILE: Final = "paces.txt"
LEAD_S: Final = 0.001
"""How far queries may be ahead of their time: to sleep for less costs more than it is worth."""
PATIENCE_S: Final = 0.25
"""How long a job's pace is waited for."""
_LOOK_S: Final = 0.001
_AT_ONCE_S: Final = 0.05
"""A job that comes so soon is what the engine was loaded for."""
_INPUT: Final = TensorSpec("x", "FP32", (1,))
_OUTPUT: Final = TensorSpec("y", "FP32", (1,))


def _age_s() -> float:
    """Seconds since this process was started, as Linux counts them."""
    fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


class EmulatedBackend:
    """See ``worker_agent.backends.Backend``; it is told whose queries it runs.

    Queries keep to an absolute schedule, so that what one is late the next one makes up for.

    Args:
        path: the model file.
        threads: which of its configurations.
        clock: a monotonic clock.
        sleep: waits for so many seconds.
        age_s: how old the process is already, which counts as setup.

    Raises:
        EngineUnusable: on construction, if the file is not as above, or lacks the configuration.
    """

    inputs: tuple[TensorSpec, ...] = (_INPUT,)
    outputs: tuple[TensorSpec, ...] = (_OUTPUT,)

    def __init__(
        self,
        path: Path,
        threads: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        age_s: Callable[[], float] = _age_s,
    ) -> None:
        self._query_s, self._setup_s = _times(path, threads)
        self._paces_file = path.parent / PACES_FILE
        self._paces: dict[str, float] = {}
        self._clock = clock
        self._sleep = sleep
        young_s = age_s()
        if young_s < self._setup_s:
            sleep(self._setup_s - young_s)
        self._took_s = max(young_s, self._setup_s)
        self._per_query_s = self._query_s
        self._due = clock()
        self._fresh_until = self._due + _AT_ONCE_S

    def begin(self, job: str) -> None:
        """The queries that follow are of `job`; empty if they are nobody's in particular."""
        now = self._clock()
        self._due = max(self._due, now)
        pace = self._pace(job) if job else 1.0
        self._per_query_s = pace * self._query_s
        if job and now < self._fresh_until:
            self._due += pace * self._setup_s - self._took_s
        self._fresh_until = now

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> list[Array]:
        """Let the query's time pass, and give back what came."""
        self._due += self._per_query_s
        ahead_s = self._due - self._clock()
        if ahead_s >= LEAD_S:
            self._sleep(ahead_s)
        given = inputs[_INPUT.name]
        return [given for _ in outputs]

    def _pace(self, job: str) -> float:
        """How many times longer the job's queries take than the profile says."""
        give_up_at = self._clock() + PATIENCE_S
        while job not in self._paces and self._paces_file.exists():
            self._paces = _read_paces(self._paces_file)
            if self._clock() >= give_up_at:
                break
            if job not in self._paces:
                self._sleep(_LOOK_S)
        return self._paces.get(job, 1.0)


def _times(path: Path, threads: int) -> tuple[float, float]:
    """Seconds of a query and of the setup in the configuration with so many threads."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        for configuration in table["configurations"]:
            if configuration["threads"] == threads:
                return _seconds(configuration["query_s"]), _seconds(configuration["setup_s"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineUnusable(
            f"{path.name} is no emulated model: it needs a [[configurations]] table with threads, "
            "query_s and setup_s for each configuration"
        ) from error
    raise EngineUnusable(f"{path.name} has no configuration with {threads} threads")


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError
    return seconds


def _read_paces(path: Path) -> dict[str, float]:
    paces = {}
    # The last line may still be being written.
    for line in path.read_text("utf-8").split("\n")[:-1]:
        job, _, factor = line.partition(" ")
        try:
            paces[job] = _seconds(factor)
        except ValueError as error:
            raise EngineUnusable(f"{path.name}: {line!r} is not a job and its factor") from error
    return paces
