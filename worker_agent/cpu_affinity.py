"""CPU affinity of engine hosts and of the threads of an engine.

On some virtual machines the kernel places two threads of an engine on one core when a query wakes
them, which is slower than a single thread. Pinning each thread to its own core prevents this.
Engines run side by side, so that each engine host begins with another core.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput
from worker_agent.power.files import format_cpus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_log = logging.getLogger(__name__)


def restrict_to(cores: Collection[int]) -> None:
    """Restrict this process, including threads started later, to `cores`.

    Cores that a power mode has switched off are ignored. If none is online, all cores are used:
    slow is better than not running.
    """
    try:
        os.sched_setaffinity(0, cores)
    except OSError:
        _log.warning("none of the cores %s is online; using all cores", format_cpus(cores))


def check_thread_counts(threads: Collection[int], cores: Collection[int]) -> None:
    """Check that there are enough cores for every thread count; no `cores` stand for all."""
    most = max(threads, default=0)
    if cores and most > len(cores):
        raise InvalidInput(f"an engine with {most} threads needs {most} cores, not {len(cores)}")


def powers_of_two(cores: int) -> list[int]:
    """Return 1, 2, 4, … up to `cores`, which is the last one."""
    counts = [1 << power for power in range(cores.bit_length()) if 1 << power < cores]
    return [*counts, cores]


def thread_cores(threads: int) -> tuple[int, ...]:
    """Return one core per thread, the calling thread's first.

    Empty for a single thread, which the kernel places best, and if there are too few cores. The
    same for all calls in this process.
    """
    cores = sorted(os.sched_getaffinity(0))
    if not 1 < threads <= len(cores):
        return ()
    first = os.getpid() % len(cores)
    return tuple([*cores, *cores][first : first + threads])


@contextmanager
def pin_new_threads(cores: Sequence[int]) -> Iterator[None]:
    """Pin the threads started in this block to `cores`, round robin; no-op if `cores` is empty.

    For runtimes that cannot pin their threads themselves.
    """
    before = _threads()
    yield
    for place, thread in enumerate(sorted(_threads() - before)):
        if cores:
            with suppress(ProcessLookupError):  # the thread has exited
                os.sched_setaffinity(thread, {cores[place % len(cores)]})


def _threads() -> set[int]:
    """Return the ids of this process's threads, which mostly increase in order of start."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}
