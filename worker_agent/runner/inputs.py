"""Inputs of a work item that arrive while it runs."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from worker_agent.runner.interfaces import Failure

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from synergai.protocol.request_codec import Buffer

    Content: TypeAlias = Buffer | Failure


class NextInput(NamedTuple):
    """A serialised ``ModelInferRequest``, or why there is none; `alone` if none may run with it."""

    content: Content
    alone: bool


class InputFeed:
    """The inputs that have arrived and have not been fed to a host, in order.

    `on_ready` is called whenever `next` may have changed from None.
    """

    def __init__(self, on_ready: Callable[[], None] = lambda: None) -> None:
        self.on_ready = on_ready
        self._inputs: deque[tuple[Content | Future[Content], bool]] = deque()

    def add(self, content: Content | Future[Content], *, alone: bool = False) -> None:
        """Add the next input, or a future of it that is not cancelled before it is taken."""
        self._inputs.append((content, alone))
        if isinstance(content, (bytes, memoryview, Failure)):
            self.on_ready()
        else:
            content.add_done_callback(lambda _: self.on_ready())

    @property
    def next(self) -> NextInput | None:
        """The next input; None if it has not arrived yet."""
        if not self._inputs:
            return None
        content, alone = self._inputs[0]
        if isinstance(content, (bytes, memoryview, Failure)):
            return NextInput(content, alone)
        return NextInput(content.result(), alone) if content.done() else None

    def take(self) -> None:
        """Remove the next input, which has been fed."""
        self._inputs.popleft()

    def _is_read_ahead(self) -> bool:
        """Return whether the next input was added as a future."""
        return not isinstance(self._inputs[0][0], (bytes, memoryview, Failure))
