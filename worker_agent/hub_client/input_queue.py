"""Inputs that the gateway sends after an assignment; those by URL are read ahead in threads."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from synergai.domain import Fault
from synergai.errors import InvalidInput
from synergai.protocol.job_inputs import split_input, without_version
from synergai.runtime.tasks import TaskBag
from worker_agent.runner.inputs import InputFeed
from worker_agent.runner.interfaces import Failure

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Collection, Sequence

    from synergai.protocol.request_codec import Buffer
    from worker_agent.runner.inputs import Content

READ_AHEAD: Final = 8
"""Inputs by URL that are being read, or were read and are not fed yet."""

_THREADS: Final = ThreadPoolExecutor(READ_AHEAD, "inputs")
"""Not those of the agent's own work, which must not wait for slow files."""

_log = logging.getLogger(__name__)


class InputQueue(InputFeed):
    """The inputs of one assignment; `read` returns the request for a URL, and blocks."""

    def __init__(
        self, read: Callable[[str], bytes], on_ready: Callable[[], None], count: int
    ) -> None:
        super().__init__(on_ready)
        self._read = read
        self._count = count
        self._received = 0
        self._urls: deque[tuple[str, Future[Content]]] = deque()
        self._ahead = 0
        self._reading = TaskBag()
        self._closed = False

    def receive(self, inputs: Sequence[Buffer], suspects: Collection[int]) -> None:
        """Add the next serialised inputs. Suspects run alone."""
        for data in inputs[: self._count - self._received]:
            alone = self._received in suspects
            self._received += 1
            try:
                found = split_input(data)
            except DecodeError as error:
                detail = f"the input is not a valid synergai.v1.Input: {error}"
                self.add(Failure(Fault.BAD_INPUT, detail), alone=alone)
                continue
            if found.request is not None:
                self.add(without_version(found.request), alone=alone)
            else:
                content: Future[Content] = asyncio.get_running_loop().create_future()
                self._urls.append((found.url, content))
                self.add(content, alone=alone)
        self._read_ahead()

    def take(self) -> None:
        """Remove the next input, which has been fed."""
        if self._is_read_ahead():
            self._ahead -= 1
        super().take()
        self._read_ahead()

    def close(self) -> None:
        """Read nothing more."""
        self._closed = True
        self._urls.clear()
        self._reading.cancel()

    def _read_ahead(self) -> None:
        while self._urls and self._ahead < READ_AHEAD and not self._closed:
            self._ahead += 1
            self._reading.start(self._fetch(*self._urls.popleft()))

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
