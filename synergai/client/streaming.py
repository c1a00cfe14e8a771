"""Results of queries, and many of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from synergai.runtime.tasks import TaskBag, is_being_cancelled
from synergai.wire.parameters import read_parameters

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Callable,
        Coroutine,
        Iterable,
        Iterator,
        Mapping,
    )

    from numpy.typing import ArrayLike, NDArray

    from synergai.errors import SynergaiError
    from synergai.oip import inference_pb2

    Inputs: TypeAlias = Mapping[str, ArrayLike]
    ManyInputs: TypeAlias = Iterable[Inputs] | AsyncIterable[Inputs]


@dataclass(frozen=True, slots=True)
class InferResult:
    """Outputs of one query; ``result["name"]`` is the output of that name, or raises `error`.

    Attributes:
        outputs: arrays by output name, with the engine's dtypes and shapes; read-only views of
            the received bytes.
        error: why the query of a stream failed; it has no outputs then.
    """

    outputs: dict[str, NDArray[Any]]
    engine: str = ""
    version: str = ""
    parameters: dict[str, bool | int | float | str] = field(default_factory=dict)
    error: SynergaiError | None = None

    def __getitem__(self, name: str) -> NDArray[Any]:
        if self.error is not None:
            raise self.error
        return self.outputs[name]


def parse_response(response: inference_pb2.ModelInferResponse) -> InferResult:
    """Convert a response of the protocol."""
    from synergai.wire import arrays

    return InferResult(
        outputs=arrays.read_outputs(response),
        engine=response.model_name,
        version=response.model_version,
        parameters=read_parameters(response.parameters),
    )


async def iterate(items: ManyInputs) -> AsyncIterator[Inputs]:
    """Yield the items of an iterable, asynchronous or not."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def answer_all(
    items: AsyncIterator[Inputs],
    answer: Callable[[Inputs], Coroutine[Any, Any, InferResult]],
    window: int,
) -> AsyncGenerator[InferResult, None]:
    """Yield the answers to items in their order; `window` of them are awaited at a time.

    An error of the items is raised after the answers to those before it.
    """
    slots = asyncio.Semaphore(window)
    # Bounded by the slots. An error is one of the items; None follows the last one.
    answers: asyncio.Queue[asyncio.Task[InferResult] | BaseException | None] = asyncio.Queue()

    async def read() -> None:
        try:
            async for item in items:
                await slots.acquire()
                answers.put_nowait(tasks.start_awaited(answer(item)))
            answers.put_nowait(None)
        except BaseException as error:
            if is_being_cancelled():
                raise
            answers.put_nowait(error)  # the caller's, in whose task alone it may be raised

    async with TaskBag() as tasks:
        tasks.start(read())
        while (found := await answers.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            result = await found
            slots.release()
            yield result


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
