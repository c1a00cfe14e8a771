"""Explanations of requests and jobs, for callers who may see them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.entry.access.caller import READERS, Caller, Role
from synergai.core.explanations import Ahead, Explanation, duration, worded
from synergai.core.scheduling.rules.history import KEPT
from synergai.errors import NotFound
from synergai.names import engine_of_stage, is_selected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.core.routes.deployment import EngineDeployment
    from synergai.core.scheduling.core import SchedulerCore

_QUOTED: Final = 128


def explain(
    caller: Caller,
    core: SchedulerCore,
    deployments: Sequence[EngineDeployment],
    name: str,
    now: float,
) -> Explanation:
    """Return the newest explanation under an id, or of all, that a caller may see.

    Callers who may observe its engine are also told how it is deployed in stages.
    """
    found = _explain(caller, core, name, now)
    sentences = (
        f"Deployment of {each.engine}: "
        + "; ".join(filter(None, [each.state, each.where, each.why]))
        + "."
        for each in _of_engine(engine_of_stage(found.engine), deployments)
        if caller.may(Role.OBSERVE, engine=each.engine)
    )
    return replace(found, sentences=(*found.sentences, *sentences))


def _of_engine(engine: str, deployments: Sequence[EngineDeployment]) -> Sequence[EngineDeployment]:
    """Return the deployment of an engine; of all versions if it was refused without one."""
    own = [each for each in deployments if each.engine == engine]
    return own or [each for each in deployments if is_selected(each.engine, engine)]


def _explain(caller: Caller, core: SchedulerCore, name: str, now: float) -> Explanation:
    caller.check_valid()
    stages: list[Explanation] = []
    for found in core.explain(name, now):
        if not caller.may(*READERS, engine=found.engine, tenant=found.tenant):
            continue
        ahead = tuple(_visible(each, caller) for each in found.ahead)
        visible = worded(replace(found, ahead=ahead))
        if not (name and found.id.startswith(f"{name}.")):
            return visible
        stages.append(visible)
    if stages:
        return _joined(name, stages)
    since = ""
    if not math.isinf(at := core.explained_since):
        since = f", at present those of the last {duration(now - at)}"
    what = f"nothing is known of {name[:_QUOTED]!r}" if name else "there is nothing to explain"
    raise NotFound(
        f"{what}: until it restarts, the gateway keeps the last {KEPT:,} requests and "
        f"jobs that were late, refused or failed{since}, and none that were in time"
    )


def _joined(name: str, stages: Sequence[Explanation]) -> Explanation:
    """Join the explanations of a job's stages; the slowest stage gives most of the facts."""
    stages = sorted(stages, key=lambda each: int(each.id.rpartition(".")[2]))
    slowest = max(stages, key=lambda each: each.waited_s)
    last = max(stages, key=lambda each: each.total_s)
    return replace(
        slowest,
        id=name,
        client_id="",
        engine=engine_of_stage(last.engine),
        state=last.state,
        total_s=last.total_s,
        runs=(),
        ahead=(),
        workers=(),
        sentences=tuple(
            sentence
            for each in stages
            for sentence in (f"Stage {each.engine} ({each.id}):", *each.sentences)
        ),
        stages=tuple(stages),
    )


def _visible(ahead: Ahead, caller: Caller) -> Ahead:
    """Hide what a caller may not see of other work."""
    if caller.may(*READERS, engine=ahead.engine, tenant=ahead.tenant):
        return ahead
    return replace(ahead, engine="", job="", tenant="")
