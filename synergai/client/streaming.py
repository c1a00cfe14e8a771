"""Many queries over one call: a stream of queries, and a job with streamed tensors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from synergai.client.multiplexer import DuplexCall, QueryMultiplexer
from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.protocol.converters import job_spec_to_proto, job_status_from_proto
from synergai.protocol.parameters import read_parameters
from synergai.protocol.status import error_from_stream
from synergai.v1 import jobs_pb2

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
    from synergai.domain import JobSpec
    from synergai.jobs import JobStatus
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
    from synergai.protocol import arrays

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
    """Yield the result of each query, in the order of `inputs`; a failed one has its error."""
    slots = asyncio.Semaphore(window)
    # In the order of the inputs; bounded by the slots. None follows the end of the call.
    replies: asyncio.Queue[asyncio.Future[Reply] | InvalidInput | None] = asyncio.Queue()

    async def requests() -> AsyncIterator[Request]:
        async for item in iterate(inputs):
            await slots.acquire()
            try:
                request = await make_request(item)
            except InvalidInput as error:
                replies.put_nowait(error)
                continue
            replies.put_nowait(multiplexer.expect(request))
            yield request

    multiplexer = QueryMultiplexer(channel, window, requests(), cancellable=False)
    multiplexer.reader.add_done_callback(lambda _: replies.put_nowait(None))
    try:
        while (reply := await replies.get()) is not None:
            if isinstance(reply, InvalidInput):
                slots.release()
                yield InferResult({}, error=reply)
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


class JobRun:
    """A job with streamed input tensors and streamed results.

    Created by ``Client.run``::

        async with client.run("digits", inputs, qos=2.0) as run:
            async for index, result in run:
                ...
        print(run.status.actual_s)

    Attributes:
        status: the job's status when it was opened; once its results are read, its last one.
    """

    status: JobStatus

    def __init__(
        self,
        channel: GatewayChannel,
        spec: JobSpec,
        inputs: ManyInputs,
        build_request: Callable[[Inputs], Request],
        on_invalid: Callable[[], object],
    ) -> None:
        self._channel = channel
        self._spec = spec
        self._inputs = inputs
        self._build_request = build_request
        self._on_invalid = on_invalid

    async def __aenter__(self) -> Self:
        self._call = DuplexCall(self._channel, self._channel.jobs.Run(), self._requests())
        self._messages = aiter(self._call)
        try:
            self.status = await self._read_opening()
        except BaseException:
            await self._call.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._call.close()

    async def __aiter__(self) -> AsyncIterator[tuple[int, InferResult]]:
        """Yield each query's index and result as they arrive, in any order."""
        try:
            async for message in self._messages:
                if message.HasField("job"):
                    self.status = job_status_from_proto(message.job)
                else:
                    yield message.result.index, _parse_result(message.result.response)
        except InvalidInput:
            self._on_invalid()
            raise
        if not self.status.state.ended:
            raise Unavailable(f"{self._channel.target} ended the call before the end of the job")
        self.status.raise_unless_succeeded()

    async def _read_opening(self) -> JobStatus:
        message = await anext(self._messages, None)
        if message is None or not message.HasField("job"):
            raise Unavailable(f"{self._channel.target} did not open the job")
        return job_status_from_proto(message.job)

    async def results(self) -> list[InferResult]:
        """Return all results, in the order of the queries."""
        results = {index: result async for index, result in self}
        return [results[index] for index in sorted(results)]

    async def _requests(self) -> AsyncIterator[jobs_pb2.RunRequest]:
        yield jobs_pb2.RunRequest(open=job_spec_to_proto(self._spec))
        index = 0
        async for item in iterate(self._inputs):
            request = self._build_request(item)
            request.id = str(index)
            query = jobs_pb2.Query(index=index, request=request.SerializeToString())
            yield jobs_pb2.RunRequest(query=query)
            index += 1
        if index != self._spec.queries:
            raise InvalidInput(
                f"the job was opened for {self._spec.queries:,} queries, but there were inputs "
                f"for {index:,}"
            )


def _parse_result(response: bytes) -> InferResult:
    from synergai.oip import inference_pb2

    return parse_response(inference_pb2.ModelInferResponse.FromString(response))
