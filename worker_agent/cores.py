"""A core of its own for every thread of an engine.

A query wakes an engine's threads. Where the kernel then puts two of them on one core, as it does
on some virtual machines, the query takes longer than with one thread. A worker runs one
assignment at a time, so that its cores are there for the engine that is running.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def own_cores(threads: int) -> tuple[int, ...]:
    """A core for each of `threads` threads, the calling thread's first.

    Nothing if there is only one thread, which the kernel places best, or if there are not enough
    cores for all of them.
    """
    cores = sorted(os.sched_getaffinity(0))
    return tuple(cores[:threads]) if 1 < threads <= len(cores) else ()


@contextmanager
def threads_on(cores: Sequence[int]) -> Iterator[None]:
    """Give the threads that are started in this block a core each of `cores`, in turn.

    For runtimes that cannot be told a core for each of their threads. Nothing is done if there
    are no cores.
    """
    before = _threads()
    yield
    for place, thread in enumerate(sorted(_threads() - before)):
        if cores:
            with suppress(ProcessLookupError):  # it was not for long
                os.sched_setaffinity(thread, {cores[place % len(cores)]})


def _threads() -> set[int]:
    """Ids of this process's threads; they rise, by and large, in the order of their start."""
    return {int(task.name) for task in Path("/proc/self/task").iterdir()}
