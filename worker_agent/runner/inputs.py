"""Inputs of a work item that arrive while it runs; tensors of other workers are pulled ahead."""

from __future__ import annotations

import asyncio
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from synergai.domain import Fault
from synergai.runtime.tasks import TaskBag
from synergai.wire.job_inputs import split_input, without_version

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence

    from synergai.v1.hub_pb2 import Pull
    from synergai.wire.request_codec import Buffer

_PULLED_AHEAD: Final = 8
"""Inputs whose tensors are being pulled, or were pulled and are not fed yet."""


class Failure(NamedTuple):
    """Reason why a work item, or one of its inputs, failed."""

    fault: Fault
    detail: str


Content: TypeAlias = "Buffer | Failure"


class NextInput(NamedTuple):
    """A serialised ``ModelInferRequest``, or why there is none; `alone` if none may run with it."""

    content: Content
    alone: bool


class InputQueue:
    """The inputs of a work item that have arrived and have not been fed to a host, in order.

    `pull` completes a request with tensors that a worker holds. `on_ready` is called whenever
    `next` may have changed from None.
    """

    def __init__(
        self,
        pull: Callable[[Pull, Buffer], Awaitable[Content]],
        on_ready: Callable[[], None],
        count: int,
    ) -> None:
        self._pull = pull
        self._on_ready = on_ready
        self._count = count
        self._received = 0
        self._inputs: deque[tuple[Content | Future[Content], bool]] = deque()
        self._to_pull: deque[Coroutine[None, None, None]] = deque()
        self._ahead = 0
        self._pulling = TaskBag()
        self._closed = False

    def receive(
        self,
        inputs: Sequence[Buffer],
        suspects: Collection[int],
        pulls: Mapping[int, Pull] = MappingProxyType({}),
    ) -> None:
        """Add the next serialised inputs. Suspects run alone; some have tensors to be pulled."""
        for data in inputs[: self._count - self._received]:
            alone, pull = self._received in suspects, pulls.get(self._received)
            self._received += 1
            try:
                found = split_input(data)
            except DecodeError as error:
                detail = f"the input is not a valid synergai.v1.Input: {error}"
                self.add(Failure(Fault.BAD_INPUT, detail), alone=alone)
                continue
            request = without_version(found.request)
            if pull is None:
                self.add(request, alone=alone)
                continue
            content: Future[Content] = asyncio.get_running_loop().create_future()
            self._to_pull.append(self._complete(pull, request, content))
            self.add(content, alone=alone)
        self._pull_ahead()

    def add(self, content: Content | Future[Content], *, alone: bool = False) -> None:
        """Add the next input, or a future of it that is not cancelled before it is taken."""
        self._inputs.append((content, alone))
        if isinstance(content, asyncio.Future):
            content.add_done_callback(lambda _: self._on_ready())
        else:
            self._on_ready()

    @property
    def next(self) -> NextInput | None:
        """The next input; None if it has not arrived yet."""
        if not self._inputs:
            return None
        content, alone = self._inputs[0]
        if not isinstance(content, asyncio.Future):
            return NextInput(content, alone)
        return NextInput(content.result(), alone) if content.done() else None

    def remove_next(self) -> None:
        """Remove the next input, which has been fed."""
        content, _ = self._inputs.popleft()
        if isinstance(content, asyncio.Future):
            self._ahead -= 1
            self._pull_ahead()

    def close(self) -> None:
        """Pull nothing more."""
        self._closed = True
        while self._to_pull:
            self._to_pull.popleft().close()
        self._pulling.cancel()

    def _pull_ahead(self) -> None:
        while self._to_pull and self._ahead < _PULLED_AHEAD and not self._closed:
            self._ahead += 1
            self._pulling.start(self._to_pull.popleft())

    async def _complete(self, pull: Pull, request: Buffer, content: Future[Content]) -> None:
        content.set_result(await self._pull(pull, request))
