"""Channel to several gateways, of which one leads, and the others refuse calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import grpc.aio


class LeaderChannel:
    """Channel whose calls go to one of several gateways; has what stubs need.

    Attributes:
        current: number of the gateway that calls go to.
    """

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        self._channels = channels
        self.current = 0

    @property
    def calls(self) -> grpc.aio.Channel:
        """What stubs are made of: a single channel itself, as there is no choice."""
        return self._channels[0] if len(self._channels) == 1 else cast("grpc.aio.Channel", self)

    def leave(self, number: int) -> None:
        """Let further calls go to the next gateway, since this one did not answer as the leader."""
        if number == self.current:  # other calls may have found out before
            self.current = (number + 1) % len(self._channels)

    def unary_unary(self, *args: Any, **options: Any) -> Callable[..., Any]:
        """Return a method with one request and one response."""
        return self._of_current(each.unary_unary(*args, **options) for each in self._channels)

    def unary_stream(self, *args: Any, **options: Any) -> Callable[..., Any]:
        """Return a method with one request and a stream of responses."""
        return self._of_current(each.unary_stream(*args, **options) for each in self._channels)

    def stream_unary(self, *args: Any, **options: Any) -> Callable[..., Any]:
        """Return a method with a stream of requests and one response."""
        return self._of_current(each.stream_unary(*args, **options) for each in self._channels)

    def stream_stream(self, *args: Any, **options: Any) -> Callable[..., Any]:
        """Return a method with streams of requests and responses."""
        return self._of_current(each.stream_stream(*args, **options) for each in self._channels)

    def _of_current(self, methods: Iterable[Callable[..., Any]]) -> Callable[..., Any]:
        of = tuple(methods)
        return lambda *args, **options: of[self.current](*args, **options)

    async def close(self) -> None:
        """Close the channels; calls in flight are cancelled."""
        for each in self._channels:
            await each.close()
