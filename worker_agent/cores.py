"""A core of its own for every thread of an engine.

A query wakes an engine's threads. Where the kernel then puts two of them on one core, as it does
on some virtual machines, the query takes longer than with one thread. A worker runs one
assignment at a time, so that its cores are there for the engine that is running.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
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
    """Threads that are started in this block run on `cores`, anywhere if there are none.

    For runtimes that cannot be told a core for each of their threads; the threads share them.
    """
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
