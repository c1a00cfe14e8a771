"""The client's end of the line: one channel and its calls."""

from __future__ import annotations

import asyncio
import time
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

import grpc

from synergai.errors import Cancelled, DeadlineExceeded, NotSupported, SynergaiError, Unavailable
from synergai.protocol.call_errors import error_from_call
from synergai.protocol.rpc import channel_options
from synergai.protocol.tls import open_channel
from synergai.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from synergai.oip import inference_pb2_grpc
    from synergai.v1 import fleet_pb2_grpc, jobs_pb2_grpc

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Connection:
    """A channel to a gateway, and the stubs on it.

    Args:
        target: ``host:port``, or any other name that gRPC can resolve.
        max_message_bytes: largest message either way.
        attempts: how often an idempotent call is tried while nobody answers; 1 means once.
        credentials: what it encrypts with; None if it does not.
    """

    def __init__(
        self,
        target: str,
        max_message_bytes: int,
        attempts: int,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self.target = target
        self._attempts = attempts
        self._channel = open_channel(target, channel_options(max_message_bytes), credentials)
        self._closed = False

    async def close(self) -> None:
        """Close the channel; calls under way end with `Cancelled`."""
        self._closed = True
        await self._channel.close()

    @cached_property
    def oip(self) -> inference_pb2_grpc.GRPCInferenceServiceAsyncStub:
        """The Open Inference Protocol; imported late, see ``synergai.client.client``.

        Raises:
            NotSupported: other stubs of the protocol are in this process already.
        """
        try:
            from synergai.oip import inference_pb2_grpc
        except TypeError:  # protobuf's "duplicate symbol"
            raise NotSupported(
                "this process has imported another library's stubs of the Open Inference "
                "Protocol, such as tritonclient.grpc; call engines from a process without it"
            ) from None
        return inference_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    @cached_property
    def jobs(self) -> jobs_pb2_grpc.JobsAsyncStub:
        """Jobs."""
        from synergai.v1 import jobs_pb2_grpc

        return jobs_pb2_grpc.JobsStub(self._channel)

    @cached_property
    def fleet(self) -> fleet_pb2_grpc.FleetAsyncStub:
        """Workers and the dictionary."""
        from synergai.v1 import fleet_pb2_grpc

        return fleet_pb2_grpc.FleetStub(self._channel)

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout: float | None,  # noqa: ASYNC109 - it is the deadline that the server is told
    ) -> ResponseT:
        """The answer to an idempotent call, tried again while nobody answers.

        Args:
            method: what to call.
            request: what to send, again each time.
            timeout: seconds for all attempts together; None means no limit.

        Raises:
            SynergaiError: what the server said, or why it could not be asked.
        """
        return await self.repeat(partial(self.call_once, method, request), timeout)

    async def repeat(
        self,
        attempt: Callable[[float | None], Awaitable[ResponseT]],
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> ResponseT:
        """What an attempt brings, made again while it ends with `Unavailable`.

        Args:
            attempt: told the seconds that are left for it; None means no limit.
            timeout: seconds for all attempts together; None means no limit.

        Raises:
            SynergaiError: what the last attempt raised; or there was no time for another one.
        """
        give_up_at = None if timeout is None else time.monotonic() + timeout
        delays = Backoff().delays()
        for number in range(1, self._attempts + 1):
            remaining = None if give_up_at is None else give_up_at - time.monotonic()
            if remaining is not None and remaining <= 0:
                # gRPC lets a call with no time left race its answer.
                break
            try:
                return await attempt(remaining)
            except Unavailable:
                pause = next(delays)
                if number == self._attempts:
                    raise
                if remaining is not None and pause >= remaining:
                    raise
                await asyncio.sleep(pause)
        raise DeadlineExceeded(f"there was no answer within {timeout:g} s")

    async def call_once(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> ResponseT:
        """The answer to a call, whatever it is.

        Raises:
            SynergaiError: what the server said, or why it could not be asked.
        """
        self.check_open()
        call = method(request, timeout=timeout)
        try:
            return await call
        except grpc.aio.AioRpcError as failure:
            raise self.error_of(failure) from None
        except asyncio.CancelledError as cancellation:
            raise self.reason_of(cancellation) from None
        finally:
            call.cancel()

    def check_open(self) -> None:
        """Check that the client has not been closed.

        Raises:
            Cancelled: it has.
        """
        if self._closed:
            raise Cancelled("the client is closed")

    def error_of(self, failure: grpc.aio.AioRpcError) -> SynergaiError:
        """What a failed call means."""
        return error_from_call(self.target, failure.code(), failure.details() or "")

    def reason_of(self, cancellation: asyncio.CancelledError) -> BaseException:
        """Why awaiting a call was cancelled: by the caller's task, or because the client closed."""
        task = asyncio.current_task()
        if self._closed and not (task and task.cancelling()):
            return Cancelled("the client was closed")
        return cancellation
