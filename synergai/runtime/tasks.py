"""Tasks with an owner."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Self

T = TypeVar("T")

_log = logging.getLogger(__name__)


class TaskBag:
    """Tasks of one owner, which waits for them or cancels them before it ends.

    A failure ends only its own task. As a context manager, it cancels its tasks on exit.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` in a task, whose failure is logged."""
        task = self._add(work)
        task.add_done_callback(_log_failure)
        return task

    def start_awaited(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` in a task whose failure concerns only who awaits it."""
        task = self._add(work)
        task.add_done_callback(_retrieve_failure)
        return task

    async def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, even if the caller is cancelled; return its result.

        Errors are the caller's; without it, only what is a bug is logged.
        """
        task = self._add(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_bug)
            raise

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def wait(self) -> None:
        """Wait until all tasks have ended, and those that they have started."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        self.cancel()
        await self.wait()

    def _add(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end, even if cancelled: nothing stops a thread."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        _retrieve_failure(task)
        raise


def is_being_cancelled() -> bool:
    """Return whether the current task itself is cancelled, and not what it has awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _retrieve_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a background task has failed", exc_info=error)


def _log_bug(task: asyncio.Task[Any]) -> None:
    if not (task.cancelled() or isinstance(task.exception(), SynergaiError)):
        _log_failure(task)
