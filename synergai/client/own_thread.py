"""Iterators of the caller's, advanced outside the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

T = TypeVar("T")
_Step: TypeAlias = "tuple[T, BaseException | None]"
"""An item, or an error: as a future's exception, asyncio would replace it by one of its own."""
_END: Final[Any] = object()


async def advance_in_thread(items: Iterator[T]) -> AsyncGenerator[T, None]:
    """Yield the items of an iterator, each step of which runs in a thread of its own.

    It may wait for ever. Threads of a pool would run out, and keep the interpreter from exiting.
    """
    wanted: SimpleQueue[Future[_Step[T]] | None] = SimpleQueue()
    arguments = (copy_context().run, items, wanted)
    Thread(target=_advance, args=arguments, name="synergai-inputs", daemon=True).start()
    del items, arguments  # else the loop would close the caller's generator
    try:
        while True:
            found: Future[_Step[T]] = Future()
            wanted.put(found)
            item, error = await asyncio.wrap_future(found)
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:
        wanted.put(None)


def _advance(
    run: Callable[..., T], items: Iterator[T], wanted: SimpleQueue[Future[_Step[T]] | None]
) -> None:
    """Take an item for each future that is wanted, until one is None or cancelled."""
    while (found := wanted.get()) is not None and found.set_running_or_notify_cancel():
        try:
            found.set_result((run(next, items, _END), None))
        except BaseException as error:  # noqa: BLE001 - raised where the item is awaited
            found.set_result((_END, error))
