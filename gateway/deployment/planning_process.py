"""The child processes in which engines are planned and cut."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from typing import IO, TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

import msgspec

from synergai.core.routes.deployment import Orders, PlanOrder, Refusal, SplitOrder, WantedEngine
from synergai.domain import EngineName
from synergai.errors import EngineUnusable, InternalError
from synergai.runtime.tasks import TaskBag
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from pathlib import Path

_COMMAND: Final = ("-m", "profiler.planning.live")
_PLAN_WITHIN_S: Final = 60.0
_SPLIT_WITHIN_S: Final = 300.0
_KEPT_S: Final = 60.0
"""Time after which a process that has nothing to do ends."""
_MOST_BYTES: Final = 16 << 20
"""Size of an answer."""


_ENVIRONMENT: Final = {"HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "VIRTUAL_ENV"}
"""Variables that a child gets, with those of Python and the locale: no passwords or keys."""

_Answer = TypeVar("_Answer")


class PlanFailed(InternalError):
    """A planner has failed, or answered nonsense."""


class _Child(NamedTuple):
    """A process, its pipes, and the file with what it writes on standard error."""

    process: asyncio.subprocess.Process
    orders: asyncio.StreamWriter
    answers: asyncio.StreamReader
    faults: IO[bytes]

    async def ask(self, order: Orders) -> bytes:
        """Return its answer to an order."""
        self.orders.write(msgspec.json.encode(order) + b"\n")
        answer = await self.answers.readline()
        if answer.endswith(b"\n"):
            return answer
        code = await self.process.wait()
        self.faults.seek(0)
        lines = self.faults.read().decode(errors="replace").strip().splitlines()
        ended = f"its process ended with exit code {code}"
        raise EngineUnusable(printable(lines[-1]) if lines else ended)

    async def end(self) -> None:
        """Kill it, unless it has exited."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self.orders.close()
        self.faults.close()


class PlanningProcesses:
    """Executes orders, each in a process that has no other; one that is idle is kept for a while.

    A start takes about a second, and a process remembers the models that it has read.
    """

    def __init__(self) -> None:
        self._idle: _Child | None = None
        self._ending: asyncio.Task[None] | None = None
        self._tasks = TaskBag()

    async def plan(self, order: PlanOrder) -> list[WantedEngine]:
        """Return what is wanted of the engines of an order.

        Raises:
            PlanFailed: the planner has failed, was too slow, or wants what is not possible.
        """
        try:
            return await self._run(order, list[WantedEngine], _PLAN_WITHIN_S)
        except EngineUnusable as error:
            raise PlanFailed(f"the planner {order.planner!r} has failed: {error}") from None

    async def split(
        self, models: Path, name: EngineName, cuts: tuple[int, ...]
    ) -> list[EngineName]:
        """Make the stages of an engine between cuts in a model directory; return their names.

        Raises:
            EngineUnusable: it cannot be cut, and why.
        """
        order = SplitOrder(models=str(models), name=name, cuts=cuts)
        return await self._run(order, list[EngineName], _SPLIT_WITHIN_S)

    async def close(self) -> None:
        """End the idle process."""
        await self._tasks.close()
        if self._idle is not None:
            await self._idle.end()

    async def _run(self, order: Orders, kind: type[_Answer], within_s: float) -> _Answer:
        child: _Child | None = None
        try:
            child = await self._take() or await _start()
            async with asyncio.timeout(within_s):
                answer = await child.ask(order)
            found: _Answer | Refusal = msgspec.json.decode(answer, type=kind | Refusal)
        except TimeoutError:
            raise EngineUnusable(f"there was no answer within {within_s:g} s") from None
        except (OSError, ValueError) as error:  # no descriptors are left, or it is nonsense
            raise EngineUnusable(str(error)) from None
        else:
            self._keep(child)
        finally:
            if child is not None and child is not self._idle:
                await child.end()
        if isinstance(found, Refusal):
            raise EngineUnusable(found.reason)
        return found

    async def _take(self) -> _Child | None:
        """Return the idle process, unless there is none or it has been killed."""
        idle, self._idle = self._idle, None
        if self._ending is not None:
            self._ending.cancel()
        if idle is not None and idle.process.returncode is not None:
            await idle.end()
            return None
        return idle

    def _keep(self, child: _Child) -> None:
        if self._idle is None and child.process.returncode is None:
            self._idle = child
            self._ending = self._tasks.start(self._end_later())

    async def _end_later(self) -> None:
        await asyncio.sleep(_KEPT_S)
        idle, self._idle = self._idle, None
        if idle is not None:
            await idle.end()


async def _start() -> _Child:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _ENVIRONMENT or name.startswith(("PYTHON", "LC_"))
    }
    pipe = asyncio.subprocess.PIPE
    faults = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the child
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *_COMMAND, str(os.getpid())),
            stdin=pipe,
            stdout=pipe,
            stderr=faults,
            env=environment,
            limit=_MOST_BYTES,
        )
    except OSError:
        faults.close()
        raise
    orders = cast("asyncio.StreamWriter", process.stdin)
    answers = cast("asyncio.StreamReader", process.stdout)
    return _Child(process, orders, answers, faults)
