"""Which cores engines run on, and a core of its own for every thread of an engine.

A query wakes an engine's threads. Where the kernel then puts two of them on one core, as it does
on some virtual machines, the query takes longer than with one thread. A worker runs one
assignment at a time, so that its cores are there for the engine that is running.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

_log = logging.getLogger(__name__)


def format_cores(cores: Collection[int]) -> str:
    """`cores` as one argument of a command; see `parse_cores`."""
    return ",".join(map(str, cores))


def parse_cores(names: str) -> tuple[int, ...]:
    """What `format_cores` has put together."""
    return tuple(map(int, names.split(","))) if names else ()


def restrict_to(cores: Collection[int]) -> None:
    """Keep this process, with all threads that it will start, to `cores`.

    A power mode may have switched some of them off, which then are left out. If none is left, the
    process may run anywhere: slow is better than not at all.
    """
    try:
        os.sched_setaffinity(0, cores)
    except OSError:
        _log.warning("none of the cores %s is online: all are used", format_cores(cores))


def check_thread_counts(threads: Collection[int], cores: Collection[int]) -> None:
    """Check that there is a core for each of as many threads as are asked for.

    Args:
        threads: the numbers of threads that engines are to run with.
        cores: those that engines are kept to; all if empty.

    Raises:
        InvalidInput: there is not.
    """
    most = max(threads, default=0)
    if cores and most > len(cores):
        raise InvalidInput(f"{most} threads of an engine need {most} cores, not {len(cores)}")


def thread_cores(threads: int) -> tuple[int, ...]:
    """A core for each of `threads` threads, the calling thread's first.

    Nothing if there is only one thread, which the kernel moves to wherever nobody else is, or if
    there are not enough cores for all of them.
    """
    cores = sorted(os.sched_getaffinity(0))
    return tuple(cores[:threads]) if 1 < threads <= len(cores) else ()


@contextmanager
def pin_new_threads(cores: Sequence[int]) -> Iterator[None]:
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
