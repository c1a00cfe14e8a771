"""Many queries over one call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from synergai.client.multiplexer import QueryMultiplexer
from synergai.errors import InvalidInput, SynergaiError
from synergai.runtime.tasks import is_being_cancelled
from synergai.wire.parameters import read_parameters
from synergai.wire.status import error_from_stream

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterable,
        Mapping,
    )

    from numpy.typing import ArrayLike, NDArray

    from synergai.client.channel import GatewayChannel
    from synergai.client.multiplexer import Reply, Request
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


async def stream_queries(
    channel: GatewayChannel,
    inputs: ManyInputs,
    make_request: Callable[[Inputs], Awaitable[Request]],
    window: int,
) -> AsyncGenerator[InferResult, None]:
    """Yield the result of each query, in the order of `inputs`; a failed one has its error.

    An error of reading the inputs is raised after the results of those before it.
    """
    channel.ensure_open()
    slots = asyncio.Semaphore(window)
    # In the order of the inputs; bounded by the slots. An error is one of reading the inputs; None
    # follows the end of the call.
    replies: asyncio.Queue[asyncio.Future[Reply] | InferResult | BaseException | None]
    replies = asyncio.Queue()

    async def requests() -> AsyncIterator[Request]:
        try:
            async for item in iterate(inputs):
                await slots.acquire()
                try:
                    request = await make_request(item)
                except InvalidInput as error:
                    replies.put_nowait(InferResult({}, error=error))
                    continue
                replies.put_nowait(multiplexer.expect(request))
                yield request
        except BaseException as error:
            if is_being_cancelled():
                raise
            replies.put_nowait(error)  # the caller's, in whose task alone it may be raised

    multiplexer = QueryMultiplexer(channel, window, requests(), cancellable=False)
    multiplexer.reader.add_done_callback(lambda _: replies.put_nowait(None))
    try:
        while (reply := await replies.get()) is not None:
            if isinstance(reply, BaseException):
                raise reply
            if isinstance(reply, InferResult):
                slots.release()
                yield reply
                continue
            message = await reply
            if message is None:
                break
            slots.release()
            yield _parse_message(message)
        if multiplexer.failure is not None:
            raise multiplexer.failure
    finally:
        await multiplexer.close()


def _parse_message(
    message: inference_pb2.ModelStreamInferResponse,
) -> InferResult:
    if message.error_message:
        return InferResult({}, error=error_from_stream(message))
    return parse_response(message.infer_response)
