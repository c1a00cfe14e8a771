"""Many queries over one call: the protocol's stream, and a job with its tensors streamed in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import grpc

from synergai.client.jobs import JobStatus, spec_to_proto, status_from_proto
from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.protocol.oip_stream import WINDOW_METADATA
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
    from types import TracebackType

    from numpy.typing import ArrayLike, NDArray

    from synergai.client.channel import Connection
    from synergai.domain import JobSpec
    from synergai.oip import inference_pb2

    Inputs: TypeAlias = Mapping[str, ArrayLike]
    ManyInputs: TypeAlias = Iterable[Inputs] | AsyncIterable[Inputs]
    Request: TypeAlias = inference_pb2.ModelInferRequest


@dataclass(frozen=True, slots=True)
class InferResult:
    """What an engine answered: ``result["name"]`` is the output called name.

    Attributes:
        outputs: arrays by output name; read-only, for they are the received bytes.
        engine: the engine that answered, and its `version`.
        parameters: what the gateway adds about the answer.
    """

    outputs: dict[str, NDArray[Any]]
    engine: str = ""
    version: str = ""
    parameters: dict[str, bool | int | float | str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.outputs[name]


def result_of(response: inference_pb2.ModelInferResponse) -> InferResult:
    """The result in `response`.

    Raises:
        InvalidInput: its data do not fit their datatypes and shapes.
    """
    from synergai.protocol import arrays

    return InferResult(
        outputs=arrays.outputs_of(response),
        engine=response.model_name,
        version=response.model_version,
        parameters=arrays.parameters_of(response.parameters),
    )


async def each(items: ManyInputs) -> AsyncIterator[Inputs]:
    """Yield the items of an iterable, asynchronous or not."""
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


class _Writer:
    """Sends on a call from a task of its own, and ends the call if what it sends cannot be made."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[Any, Any],
        write: Callable[[], Awaitable[None]],
    ) -> None:
        self._call = call
        self._write = write
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._write()
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call is over, and its reader is told why
        except Exception:
            self._call.cancel()
            raise

    def check(self) -> None:
        """Raise what the writing raised, if it did."""
        if self._task.done() and not self._task.cancelled():
            self._task.result()

    async def close(self) -> None:
        """End the writing and the call, whatever became of them."""
        self._task.cancel()
        self._call.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # has been seen, or no longer matters


async def read_all(
    connection: Connection, call: grpc.aio.StreamStreamCall[Any, Any], writer: _Writer
) -> AsyncIterator[Any]:
    """The messages of a call, its failures in our own words.

    Raises:
        SynergaiError: the call failed.
        Exception: what making the requests raised.
    """
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as failure:
        raise connection.error_of(failure) from None
    except asyncio.CancelledError as cancellation:
        writer.check()
        raise connection.reason_of(cancellation) from None
    writer.check()


async def stream(
    connection: Connection,
    inputs: ManyInputs,
    request_of: Callable[[Inputs, str], Request],
    window: int,
) -> AsyncGenerator[InferResult | SynergaiError, None]:
    """Results and failures of single queries, in the order of `inputs`.

    Args:
        connection: where to.
        inputs: one mapping of inputs for each query.
        request_of: makes the request of a query and its id.
        window: how many queries may be on their way at once.

    Raises:
        SynergaiError: the call failed as a whole.
        Exception: what iterating over `inputs` raised.
    """
    slots = asyncio.Semaphore(window)
    sent = 0
    call = connection.oip.ModelStreamInfer(metadata=((WINDOW_METADATA, str(window)),))

    async def write() -> None:
        nonlocal sent
        async for item in each(inputs):
            await slots.acquire()
            request = request_of(item, str(sent))
            sent += 1
            await call.write(request)

    writer = _Writer(call, write)
    # Answers come in any order; those ahead of their turn wait here, at most a window of them.
    answers: dict[int, InferResult | SynergaiError] = {}
    following = 0
    try:
        async for message in read_all(connection, call, writer):
            index = _index(message.infer_response.id, following, sent, answers)
            answers[index] = _answer(message)
            while following in answers:
                answer = answers.pop(following)
                following += 1
                slots.release()
                yield answer
        if following < sent:
            raise Unavailable(f"{connection.target} ended the stream with queries unanswered")
    finally:
        await writer.close()


def _index(response_id: str, following: int, sent: int, answers: Mapping[int, object]) -> int:
    """Which query is answered; a server that leaves out the id answers in order."""
    if not response_id:
        return following
    index = int(response_id) if response_id.isascii() and response_id.isdecimal() else -1
    if not following <= index < sent or index in answers:
        raise InvalidInput(f"the server answered a query that was not asked: {response_id!r}")
    return index


def _answer(
    message: inference_pb2.ModelStreamInferResponse,
) -> InferResult | SynergaiError:
    if message.error_message:
        return error_from_stream(message)
    return result_of(message.infer_response)


class JobRun:
    """A job whose queries' tensors are streamed in and whose results are streamed out.

    Made by ``Client.run``::

        async with client.run("digits", inputs, qos=2.0) as run:
            async for index, result in run:
                ...
        print(run.status.actual_s)

    Attributes:
        status: the job at its opening, then, once its results are read, at its end.
    """

    status: JobStatus

    def __init__(
        self,
        connection: Connection,
        spec: JobSpec,
        inputs: ManyInputs,
        request_of: Callable[[Inputs, str], Request],
    ) -> None:
        self._connection = connection
        self._spec = spec
        self._inputs = inputs
        self._request_of = request_of

    async def __aenter__(self) -> Self:
        self._call = self._connection.jobs.Run()
        self._writer = _Writer(self._call, self._write)
        self._messages = read_all(self._connection, self._call, self._writer)
        try:
            self.status = await self._opening()
        except BaseException:
            await self._writer.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._writer.close()

    async def __aiter__(self) -> AsyncIterator[tuple[int, InferResult]]:
        """Each query's index and result, as they come, in any order.

        Raises:
            SynergaiError: the job did not succeed, or its call failed.
        """
        async for message in self._messages:
            if message.HasField("job"):
                self.status = status_from_proto(message.job)
            else:
                yield message.result.index, _parsed(message.result.response)
        if not self.status.state.ended:
            raise Unavailable(f"{self._connection.target} ended the call before the job")
        self.status.raise_unless_succeeded()

    async def _opening(self) -> JobStatus:
        message = await anext(self._messages, None)
        if message is None or not message.HasField("job"):
            raise Unavailable(f"{self._connection.target} did not open the job")
        return status_from_proto(message.job)

    async def results(self) -> list[InferResult]:
        """All results, in the order of the queries.

        Raises:
            SynergaiError: as iterating does.
        """
        found = {index: result async for index, result in self}
        return [found[index] for index in sorted(found)]

    async def _write(self) -> None:
        await self._call.write(jobs_pb2.RunRequest(open=spec_to_proto(self._spec)))
        index = 0
        async for item in each(self._inputs):
            request = self._request_of(item, str(index))
            query = jobs_pb2.Query(index=index, request=request.SerializeToString())
            await self._call.write(jobs_pb2.RunRequest(query=query))
            index += 1
        if index != self._spec.queries:
            raise InvalidInput(
                f"the job was opened for {self._spec.queries:,} queries, and there were inputs "
                f"for {index:,}"
            )


def _parsed(response: bytes) -> InferResult:
    from synergai.oip import inference_pb2

    return result_of(inference_pb2.ModelInferResponse.FromString(response))
