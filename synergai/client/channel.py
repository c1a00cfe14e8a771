"""A client's gRPC channel to a gateway, or the leader of several: error mapping and retries."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from functools import cached_property, partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import grpc
import grpc.aio

from synergai.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInput,
    NotSupported,
    SynergaiError,
    Unavailable,
)
from synergai.runtime.clock import Backoff
from synergai.runtime.tasks import is_being_cancelled
from synergai.wire.credentials import authorized, open_channel
from synergai.wire.parameters import ids_from_metadata
from synergai.wire.rpc import channel_options
from synergai.wire.status import WORKERS_FAILED, error_from_call

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from synergai.oip import inference_pb2_grpc
    from synergai.v1 import fleet_pb2_grpc, jobs_pb2, jobs_pb2_grpc, store_pb2_grpc
    from synergai.wire.credentials import Metadata


def check_not_forked() -> None:
    """Check that this process, and not one that it was forked from, was the first to use a client.

    The threads and event loops of gRPC and of `SyncClient` do not survive a fork: calls of the
    child would never return.
    """
    if is_forked():
        raise NotSupported(
            "gRPC does not work in a process that was forked from one that has used a client: "
            "start it with 'spawn' or 'forkserver', or fork before the first client"
        )


def is_forked() -> bool:
    """Return whether this process was forked from one that has used a client."""
    return _first_user() != os.getpid()


@functools.cache
def _first_user() -> int:
    """Return the id of the process that called this first."""
    return os.getpid()


CALL_TIMEOUT_S: Final = 10.0
"""Timeout of calls without inference, which a healthy gateway answers at once."""

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class GatewayChannel:
    """A channel to a gateway, or to the leader of several, and the service stubs on it.

    Args:
        targets: the addresses; a call that finds no leader behind one moves on to the next.
        attempts: attempts of a call without a deadline at the only gateway; 1 disables retries.
        patience: seconds for which other calls are retried.

    Attributes:
        backoff: delays between retries.
        closed: whether the client has closed it.
    """

    def __init__(
        self,
        targets: Sequence[str],
        max_message_bytes: int,
        attempts: int,
        patience: float,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Metadata = (),
    ) -> None:
        check_not_forked()
        self._loop = asyncio.get_running_loop()
        self._targets = targets
        self._attempts = attempts
        self._several = len(targets) > 1
        self._patience = patience if attempts > 1 else 0.0
        self.backoff = Backoff(max_s=1.0)
        options = channel_options(max_message_bytes, failover=self._several)
        self._channel = LeaderChannel(
            [open_channel(target, options, credentials) for target in targets]
        )
        self._calls = authorized(self._channel.calls, metadata)
        self.closed = False
        self._has_answered = False

    @property
    def has_ended(self) -> bool:
        """Whether it is closed, or its event loop has ended."""
        return self.closed or self._loop.is_closed()

    @property
    def gateway(self) -> int:
        """Number of the gateway that calls go to."""
        return self._channel.current

    @property
    def target(self) -> str:
        """Address of the gateway that calls go to."""
        return self._targets[self.gateway]

    async def close(self) -> None:
        """Close the channel; calls in flight fail with `Cancelled`."""
        self.closed = True
        await self._channel.close()

    @cached_property
    def oip(self) -> inference_pb2_grpc.GRPCInferenceServiceAsyncStub:
        """Stub of the Open Inference Protocol, imported on first use."""
        try:
            from synergai.oip import inference_pb2_grpc
        except TypeError:  # protobuf's "duplicate symbol"
            raise NotSupported(
                "this process has imported another library's stubs of the Open Inference "
                "Protocol, such as tritonclient.grpc; call engines from a process without it"
            ) from None
        return inference_pb2_grpc.GRPCInferenceServiceStub(self._calls)

    @cached_property
    def jobs(self) -> jobs_pb2_grpc.JobsAsyncStub:
        """Stub of ``synergai.v1.Jobs``."""
        from synergai.v1 import jobs_pb2_grpc

        return jobs_pb2_grpc.JobsStub(self._calls)

    def upload(self) -> grpc.aio.StreamStreamCall[bytes, jobs_pb2.UploadReceipt]:
        """Start an upload, whose requests are serialised by the caller without copying them."""
        from synergai.v1 import jobs_pb2

        method: grpc.aio.StreamStreamMultiCallable[bytes, jobs_pb2.UploadReceipt]
        method = self._calls.stream_stream(
            "/synergai.v1.Jobs/Upload",
            response_deserializer=jobs_pb2.UploadReceipt.FromString,
        )
        return method()

    @cached_property
    def fleet(self) -> fleet_pb2_grpc.FleetAsyncStub:
        """Stub of ``synergai.v1.Fleet``."""
        from synergai.v1 import fleet_pb2_grpc

        return fleet_pb2_grpc.FleetStub(self._calls)

    @cached_property
    def store(self) -> store_pb2_grpc.StoreAsyncStub:
        """Stub of ``synergai.v1.Store``."""
        from synergai.v1 import store_pb2_grpc

        return store_pb2_grpc.StoreStub(self._calls)

    async def call(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout: float | None = CALL_TIMEOUT_S,  # noqa: ASYNC109 - sent to the server as the deadline
        is_deadline: bool = False,
    ) -> ResponseT:
        """Make an idempotent call, retrying while the gateway is unavailable.

        Args:
            is_deadline: whether the user gave the timeout, until which an answer is of use.
        """
        patience = self._patience if self._several or is_deadline else 0.0
        began = time.monotonic()
        delays = self.backoff.delays()
        for number in count(1):
            passed = time.monotonic() - began
            remaining = None if timeout is None else timeout - passed
            if remaining is not None and remaining <= 0:
                # gRPC lets a call whose timeout has expired race its response.
                break
            try:
                return await self.call_once(method, request, remaining)
            except Unavailable as error:
                delay = next(delays)
                # An address at which nobody has answered yet may be wrong.
                may_return = self._has_answered and not str(error).startswith(WORKERS_FAILED)
                limit_s = patience if may_return or self._several else 0.0
                if number >= self._attempts and passed + delay > limit_s:
                    raise
                if remaining is not None and delay >= remaining:
                    raise
                await asyncio.sleep(delay)
        raise DeadlineExceeded("no response before the deadline")

    async def call_once(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> ResponseT:
        """Make a call without retries."""
        self.ensure_open()
        gateway = self.gateway
        call = method(request, timeout=timeout)
        try:
            response = await call
        except grpc.aio.AioRpcError as failure:
            self._has_answered |= bool(failure.trailing_metadata())
            raise self.to_error(failure, gateway) from None
        except asyncio.CancelledError as cancellation:
            raise self.cancellation_cause(cancellation) from None
        finally:
            call.cancel()
        self._has_answered = True
        return response

    def ensure_open(self) -> None:
        """Check that calls are possible.

        Raises:
            Cancelled: the client is closed.
            NotSupported: this is a forked process.
            InvalidInput: this is another event loop than the one that the client is connected in.
        """
        check_not_forked()
        if self.closed:
            raise Cancelled("the client is closed")
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidInput(
                "the client was connected in an event loop that has ended; use it within `async "
                "with client` in each loop"
                if self.has_ended
                else "the client is connected in another event loop; use a client for each of them"
            )

    def to_error(self, failure: grpc.aio.AioRpcError, gateway: int) -> SynergaiError:
        """Return the error that a failed call to a gateway stands for."""
        error = error_from_call(self._targets[gateway], failure.code(), failure.details() or "")
        error.request_id = ids_from_metadata(failure.trailing_metadata() or ()).chosen
        if isinstance(error, Unavailable):
            self._channel.leave(gateway)
        return error

    def cancellation_cause(self, cancellation: asyncio.CancelledError) -> BaseException:
        """Return `Cancelled` if closing the client ended the call, else `cancellation` itself."""
        if self.closed and not is_being_cancelled():
            return Cancelled("the client was closed")
        return cancellation


class LeaderChannel:
    """Channel whose calls go to one of several gateways; has what stubs need.

    Attributes:
        current: number of the gateway that calls go to.
    """

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        self._channels = channels
        self.current = 0
        self.unary_unary = partial(self._method, "unary_unary")
        self.unary_stream = partial(self._method, "unary_stream")
        self.stream_unary = partial(self._method, "stream_unary")
        self.stream_stream = partial(self._method, "stream_stream")

    @property
    def calls(self) -> grpc.aio.Channel:
        """What stubs are made of: a single channel itself, as there is no choice."""
        return self._channels[0] if len(self._channels) == 1 else cast("grpc.aio.Channel", self)

    def leave(self, number: int) -> None:
        """Let further calls go to the next gateway, since this one did not answer as the leader."""
        if number == self.current:  # other calls may have found out before
            self.current = (number + 1) % len(self._channels)

    def _method(self, kind: str, *args: Any, **options: Any) -> Callable[..., Any]:
        of = [getattr(each, kind)(*args, **options) for each in self._channels]
        return lambda *args, **options: of[self.current](*args, **options)

    async def close(self) -> None:
        """Close the channels; calls in flight are cancelled."""
        for each in self._channels:
            await each.close()


T = TypeVar("T")


class Patience:
    """Waits between attempts to reach a gateway, for some seconds without success."""

    def __init__(self, seconds: float, backoff: Backoff) -> None:
        self.seconds = seconds
        self._backoff = backoff
        self.reset()

    def reset(self) -> None:
        """Begin again, since the gateway was reached."""
        self._delays = self._backoff.delays()
        self._since: float | None = None

    async def wait(self, error: Unavailable) -> None:
        """Wait until the next attempt, or raise the error if it has lasted too long."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        delay = next(self._delays)
        if now + delay - self._since > self.seconds:
            raise error
        await asyncio.sleep(delay)


async def messages_of(
    channel: GatewayChannel,
    make_call: Callable[[], grpc.aio.UnaryStreamCall[Any, T]],
    patience: Patience,
    *,
    lost: str = "",
) -> AsyncGenerator[T, None]:
    """Yield the messages of a call, which is made again while the gateway is unavailable.

    A call that the gateway ends is made again, too, if `lost` says what that means.
    """
    while True:
        channel.ensure_open()
        gateway, called_at = channel.gateway, time.monotonic()
        call = make_call()
        error = Unavailable(lost)
        try:
            async for message in call:
                patience.reset()
                yield message
            if not lost:
                return
        except grpc.aio.AioRpcError as failure:
            failed = channel.to_error(failure, gateway)
            if not isinstance(failed, Unavailable):
                raise failed from None
            error = failed
        except asyncio.CancelledError as cancellation:
            raise channel.cancellation_cause(cancellation) from None
        finally:
            call.cancel()
        # No message need arrive for long; a call that has lasted was connected.
        if time.monotonic() - called_at > patience.seconds:
            patience.reset()
        await patience.wait(error)
