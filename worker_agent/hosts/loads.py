"""Loads of an engine host: of its engine at the start, and of further variants of it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from synergai.errors import EngineUnusable, SynergaiError, Unavailable
from worker_agent.ipc import (
    LoadFailed,
    LoadStarted,
    LoadVariant,
    Message,
    Order,
    Ready,
    UnloadVariant,
    VariantUnloaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class LoadHung(EngineUnusable):
    """The engine was not loaded within the time limit."""


class LoadCrashed(Unavailable):
    """The engine host crashed while it loaded the engine."""


class LoadSuspected(Unavailable):
    """The engine host crashed while it loaded a variant, maybe because of a query that it had."""


class HostLoads:
    """The first load, and orders in flight, one for each variant at a time.

    `loading` is the variant that the host is loading; None if it loads none.
    """

    def __init__(self, send: Callable[[Order], None], kill: Callable[[str], None]) -> None:
        self._send = send
        self._kill = kill
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[Message] = self._loop.create_future()
        # Answers to orders in flight, by variant.
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self.loading: str | None = None
        # How the process exited; empty while it runs.
        self._exit = ""

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def is_starting(self) -> bool:
        """Whether the first load has not ended, even if nothing waits for it any longer."""
        return not self._first.done() or self._first.cancelled()

    async def first(self, timeout_s: float) -> Ready:
        """Wait until the engine is loaded; raise the exceptions of `HostProcess.start`."""
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._first
        except TimeoutError:
            # Without the engine's name: faults are shown next to it.
            raise LoadHung(f"it was not loaded within {timeout_s:g} s") from None
        return _loaded(message)

    async def load(self, variant: str, timeout_s: float) -> Ready:
        """Load a further variant; see `HostProcess.load_variant`."""
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._order(LoadVariant(variant))
        except TimeoutError:
            what = f"variant {variant!r}"
            error = LoadHung if self.loading == variant else Unavailable
            self._kill(f"did not load {what} in time, and was killed")
            raise error(f"{what} was not loaded within {timeout_s:g} s") from None
        return _loaded(message)

    def unload(self, variant: str) -> asyncio.Future[Message]:
        """Free a variant without orders in flight; return the answer to come."""
        return self._send_order(UnloadVariant(variant))

    async def _order(self, order: Order) -> Message:
        while (before := self._answers.get(order.variant)) is not None:
            await asyncio.wait([before])
        return await self._send_order(order)

    def _send_order(self, order: Order) -> asyncio.Future[Message]:
        if self._exit:
            raise Unavailable(self._exit)
        answer = self._answers[order.variant] = self._loop.create_future()
        answer.add_done_callback(partial(self._end_order, order.variant))
        self._send(order)
        return answer

    def _end_order(self, variant: str, answer: asyncio.Future[Message]) -> None:
        del self._answers[variant]
        if not answer.cancelled():
            answer.exception()  # which is no fault if nothing waits for it any longer

    def receive(self, message: LoadStarted | Ready | LoadFailed | VariantUnloaded) -> None:
        """Handle a message about loads: pass an answer on to the order that waits for it."""
        match message:
            case Ready() | LoadFailed() if not self._first.done():
                self._first.set_result(message)
            case LoadStarted(variant):
                self.loading = variant
            case Ready(variant=variant) | LoadFailed(variant=variant) | VariantUnloaded(variant):
                if not isinstance(message, VariantUnloaded):
                    self.loading = None
                answer = self._answers.get(variant)
                if answer is not None and not answer.done():
                    answer.set_result(message)

    def fail(self, reason: str, error: SynergaiError, *, has_runs: bool) -> None:
        """Let all loads fail, since the process has exited; one that had begun fails by `error`.

        If the process had runs, one of them may have crashed it, so that the load is but suspected.
        """
        self._exit = reason
        if has_runs and isinstance(error, LoadCrashed):
            error = LoadSuspected(str(error))
        for variant, answer in self._answers.items():
            if not answer.done():
                answer.set_exception(error if variant == self.loading else Unavailable(reason))
        if not self._first.done():
            self._first.set_exception(error)


def _loaded(message: Message) -> Ready:
    """Return the message that a load has ended, or raise why it failed."""
    if isinstance(message, Ready):
        return message
    if isinstance(message, LoadFailed):
        raise message.error()
    raise EngineUnusable(f"unexpected answer from the host: {message}")
