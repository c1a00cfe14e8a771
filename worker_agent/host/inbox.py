"""What an engine host has been asked to do, as it comes over its socket."""

from __future__ import annotations

import select
import time
from collections import deque
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, TypeAlias

from synergai.errors import InvalidInput
from worker_agent.ipc.frames import Decoder, RunQuery, RunSamples, StopRun

if TYPE_CHECKING:
    import socket

    Run: TypeAlias = RunQuery | RunSamples

_RECEIVE_BYTES: Final = 256 << 10
_LOOK_AFTER_S: Final = 0.0001
"""Since the last look at the socket; one costs as much as many a query."""


class AgentDisconnected(Exception):
    """The agent closed the socket or died; there is nobody to work for."""


class Inbox:
    """The runs that the agent has asked for, and which of them it has called off."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder = Decoder()
        self._runs: deque[Run] = deque()
        self._stopped: set[int] = set()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._looked_at = 0.0

    def take(self) -> Run:
        """The next run; waits for one.

        Raises:
            AgentGone: there will be none.
        """
        while not self._runs:
            self._receive()
        return self._runs.popleft()

    def has_query(self) -> bool:
        """The next run is a single query, as far as we have looked."""
        return bool(self._runs) and isinstance(self._runs[0], RunQuery)

    def following(self, count: int) -> list[RunQuery]:
        """The next runs, at most `count`, as far as they are queries that anybody still wants.

        Raises:
            AgentGone: it has called off everything.
        """
        self._look()
        wanted = takewhile(lambda run: run.run not in self._stopped, islice(self._runs, count))
        queries = []
        for run in wanted:
            if not isinstance(run, RunQuery):
                break
            queries.append(run)
        return queries

    def is_stopped(self, run: int) -> bool:
        """Whether the agent, as of just now, has called `run` off.

        Raises:
            AgentGone: it has called off everything.
        """
        if time.perf_counter() - self._looked_at > _LOOK_AFTER_S:
            self._look()
        return run in self._stopped

    def forget(self, run: int) -> None:
        """The run is over, so nobody asks about it any more."""
        if self._stopped:
            # Runs rise and end in order: what is left of earlier ones came too late.
            self._stopped = {stopped for stopped in self._stopped if stopped > run}

    def _look(self) -> None:
        while self._poll.poll(0):
            self._receive()
        self._looked_at = time.perf_counter()

    def _receive(self) -> None:
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except ConnectionError as error:
            raise AgentDisconnected from error
        if not data:
            raise AgentDisconnected
        self._looked_at = time.perf_counter()
        for message in self._decoder.feed(data):
            match message:
                case RunQuery() | RunSamples():
                    self._runs.append(message)
                case StopRun(run):
                    self._stopped.add(run)
                case _:
                    raise InvalidInput(f"an engine host cannot receive {message}")
