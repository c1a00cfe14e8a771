"""The child process in which engines are planned and cut."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Final

import msgspec

from synergai.core.routes.deployment import PlanOrder, SplitOrder, WantedEngine
from synergai.domain import EngineName
from synergai.errors import EngineUnusable, InternalError
from synergai.runtime.text import printable

if TYPE_CHECKING:
    from pathlib import Path

_COMMAND: Final = ("-m", "profiler.planning.live")
_PLAN_WITHIN_S: Final = 60.0
_SPLIT_WITHIN_S: Final = 300.0


_ENVIRONMENT: Final = {"HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "VIRTUAL_ENV"}
"""Variables that a child gets, with those of Python and the locale: no passwords or keys."""


class PlanFailed(InternalError):
    """A planner has failed, or answered nonsense."""


async def plan(order: PlanOrder) -> list[WantedEngine]:
    """Return what is wanted of the engines of an order.

    Raises:
        PlanFailed: the planner has failed, was too slow, or wants what is not possible.
    """
    try:
        found = msgspec.json.decode(await _run(order, _PLAN_WITHIN_S), type=list[WantedEngine])
    except (EngineUnusable, msgspec.MsgspecError) as error:
        raise PlanFailed(f"the planner {order.planner!r} has failed: {error}") from None
    return found


async def split(models: Path, name: EngineName, cuts: tuple[int, ...]) -> list[EngineName]:
    """Make the stages of an engine between cuts in a model directory; return their names.

    Raises:
        EngineUnusable: it cannot be cut, and why.
    """
    order = SplitOrder(models=str(models), name=name, cuts=cuts)
    return msgspec.json.decode(await _run(order, _SPLIT_WITHIN_S), type=list[EngineName])


async def _run(order: PlanOrder | SplitOrder, within_s: float) -> bytes:
    """Return the answer of a child process to an order."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, *_COMMAND, str(os.getpid())]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _ENVIRONMENT or name.startswith(("PYTHON", "LC_"))
    }
    child = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
    )
    try:
        async with asyncio.timeout(within_s):
            answer, faults = await child.communicate(msgspec.json.encode(order))
    except TimeoutError:
        raise EngineUnusable(f"there was no answer within {within_s:g} s") from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        lines = faults.decode(errors="replace").strip().splitlines()
        ended = f"its process ended with exit code {child.returncode}"
        raise EngineUnusable(printable(lines[-1]) if lines else ended)
    return answer
