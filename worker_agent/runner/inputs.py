"""Inputs of a work item that arrive while it runs.

Those by URL are read ahead in threads, and tensors that other workers hold are pulled ahead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from synergai.domain import Fault
from synergai.errors import InvalidInput
from synergai.protocol.job_inputs import split_input, without_version
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence

    from synergai.protocol.request_codec import Buffer
    from synergai.v1.hub_pb2 import Pull

READ_AHEAD: Final = 8
"""Inputs elsewhere that are being read, or were read and are not fed yet."""

_THREADS: Final = ThreadPoolExecutor(READ_AHEAD, "inputs")
"""Not those of the agent's own work, which must not wait for slow files."""

_log = logging.getLogger(__name__)


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

    `read` returns the request for a URL, and blocks. `pull` completes a request with tensors that a
    worker holds. `on_ready` is called whenever `next` may have changed from None.
    """

    def __init__(
        self,
        read: Callable[[str], bytes],
        pull: Callable[[Pull, Buffer], Awaitable[Content]],
        on_ready: Callable[[], None],
        count: int,
    ) -> None:
        self._read = read
        self._pull = pull
        self._on_ready = on_ready
        self._count = count
        self._received = 0
        self._inputs: deque[tuple[Content | Future[Content], bool]] = deque()
        self._elsewhere: deque[Coroutine[None, None, None]] = deque()
        self._ahead = 0
        self._reading = TaskBag()
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
            request = None if found.request is None else without_version(found.request)
            if request is not None and pull is None:
                self.add(request, alone=alone)
                continue
            content: Future[Content] = asyncio.get_running_loop().create_future()
            if request is None or pull is None:
                self._elsewhere.append(self._fetch(found.url, content))
            else:
                self._elsewhere.append(self._complete(pull, request, content))
            self.add(content, alone=alone)
        self._read_ahead()

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

    def take(self) -> None:
        """Remove the next input, which has been fed."""
        content, _ = self._inputs.popleft()
        if isinstance(content, asyncio.Future):
            self._ahead -= 1
            self._read_ahead()

    def close(self) -> None:
        """Read nothing more."""
        self._closed = True
        while self._elsewhere:
            self._elsewhere.popleft().close()
        self._reading.cancel()

    def _read_ahead(self) -> None:
        while self._elsewhere and self._ahead < READ_AHEAD and not self._closed:
            self._ahead += 1
            self._reading.start(self._elsewhere.popleft())

    async def _complete(self, pull: Pull, request: Buffer, content: Future[Content]) -> None:
        content.set_result(await self._pull(pull, request))

    async def _fetch(self, url: str, content: Future[Content]) -> None:
        try:
            found: Content = await asyncio.get_running_loop().run_in_executor(
                _THREADS, self._read, url
            )
        except InvalidInput as error:
            found = Failure(Fault.BAD_INPUT, str(error))
        except Exception:  # noqa: BLE001 - it must not end the assignment
            _log.exception("reading %s failed", url)
            found = Failure(Fault.BAD_INPUT, "it cannot be read; see the worker's log")
        content.set_result(found)
