"""Calls that outlast an unavailable gateway."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from synergai.client.channel import GatewayChannel
    from synergai.runtime.backoff import Backoff

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
