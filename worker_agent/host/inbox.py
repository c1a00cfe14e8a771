"""Queue of the runs that an engine host has received over its socket."""

from __future__ import annotations

import select
import time
from collections import deque
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from synergai.errors import InvalidInput
from worker_agent.ipc import (
    Decoder,
    LoadVariant,
    Order,
    RunQuery,
    RunSamples,
    StopRun,
    UnloadVariant,
)

if TYPE_CHECKING:
    import socket

    Run: TypeAlias = RunQuery | RunSamples

_RECEIVE_BYTES: Final = 256 << 10
_POLL_INTERVAL_S: Final = 0.0001
"""Minimum interval between two polls of the socket; a poll costs as much as a short query."""


class AgentDisconnected(Exception):
    """The agent closed the socket or died."""


class Inbox:
    """Receives runs, requests to stop them, and orders from the agent."""

    def __init__(self, agent_socket: socket.socket) -> None:
        self._socket = agent_socket
        self._decoder = Decoder()
        self._runs: deque[Run] = deque()
        self._orders: deque[Order] = deque()
        self._stopped: set[int] = set()
        self._poller = select.poll()
        self._poller.register(agent_socket, select.POLLIN)
        self._polled_at = 0.0

    def take_run(self) -> Run | None:
        """Wait for the next run and return it; None as soon as there is an order."""
        while not self._orders:
            if self._runs:
                return self._runs.popleft()
            self._receive()
        return None

    def take_queries(self, count: int) -> list[RunQuery]:
        """Return the next `count` runs, which `peek_queries` has returned before."""
        return [cast("RunQuery", self._runs.popleft()) for _ in range(count)]

    def next_order(self) -> Order | None:
        """Return the next order received so far; orders go before all runs."""
        return self._orders.popleft() if self._orders else None

    def next_is_query(self) -> bool:
        """Return whether the next run received so far is a single query."""
        return bool(self._runs) and isinstance(self._runs[0], RunQuery)

    def peek_queries(self, count: int) -> list[RunQuery]:
        """Return up to `count` next runs, ending before one that is stopped or not a query."""
        self._poll()
        active = takewhile(lambda run: run.run_id not in self._stopped, islice(self._runs, count))
        queries = []
        for run in active:
            if not isinstance(run, RunQuery):
                break
            queries.append(run)
        return queries

    def is_stopped(self, run_id: int) -> bool:
        """Return whether the agent has stopped the run; polls the socket if necessary."""
        if time.perf_counter() - self._polled_at > _POLL_INTERVAL_S:
            self._poll()
        return run_id in self._stopped

    def discard_stops(self, run_id: int) -> None:
        """Discard stop requests for `run_id` and all earlier runs, which have ended."""
        if self._stopped:
            # Ids increase and runs end in order: stops of earlier runs arrived too late.
            self._stopped = {stopped for stopped in self._stopped if stopped > run_id}

    def _poll(self) -> None:
        while self._poller.poll(0):
            self._receive()
        self._polled_at = time.perf_counter()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except ConnectionError as error:
            raise AgentDisconnected from error
        if not data:
            raise AgentDisconnected
        self._polled_at = time.perf_counter()
        for message in self._decoder.feed(data):
            match message:
                case RunQuery() | RunSamples():
                    self._runs.append(message)
                case StopRun(run_id):
                    self._stopped.add(run_id)
                case LoadVariant() | UnloadVariant():
                    self._orders.append(message)
                case _:
                    raise InvalidInput(f"unexpected message from the agent: {message}")
