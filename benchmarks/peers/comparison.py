"""One peer beside our gateway, in turns."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.call_patterns import STREAM_1, STREAM_3, STREAM_16, UNARY_1, UNARY_16, Way, probes
from benchmarks.interleaving import in_turns
from benchmarks.peers.environment import installed
from benchmarks.peers.peer_process import RunningPeer, running
from benchmarks.report import Comparison, Section
from benchmarks.servers import APART, GATEWAY, Ours
from benchmarks.workloads import Workload, identity, photograph

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.interleaving import Unit
    from benchmarks.peers.registry import Peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A workload in some ways, and which figures are compared.

    Attributes:
        title: what the workload is, for people.
        workload: what is asked.
        seconds: how long each probe runs, as a multiple of what the command line says.
        compared: way, unit, and the limits that Triton's figures set for ours, at most and at
            least.
    """

    title: str
    workload: Workload
    seconds: float
    compared: Sequence[tuple[Way, Unit, float | None, float | None]]


QUESTIONS: Final = (
    Question(
        title="identity",
        workload=identity(),
        seconds=1.0,
        compared=(
            (UNARY_1, "median_ms", 1.25, None),
            (UNARY_16, "per_second", None, 0.9),
            (STREAM_1, "median_ms", 0.9, None),
            (STREAM_16, "per_second", None, 1.4),
        ),
    ),
    Question(
        title="MobileNet",
        workload=photograph(),
        seconds=2.0,
        compared=(
            (UNARY_1, "median_ms", 1.0, None),
            (STREAM_3, "per_second", None, None),
        ),
    ),
)
_UNITS: Final = {"median_ms": "median", "per_second": "requests per second"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is the same for every peer.

    Attributes:
        own: ourselves, as we come.
        apart: ourselves as `APART` says.
        models: the model directory.
        cache: where environments are kept.
        scratch: where servers write.
        seconds: how long a probe runs per round.
        rounds: how many rounds there are.
    """

    own: Ours
    apart: Ours
    models: Path
    cache: Path
    scratch: Path
    seconds: float
    rounds: int


async def measure(peer: Peer, setting: Setting) -> list[Section]:
    """Install and run `peer`, and ask it and us every question in turns.

    Raises:
        Unavailable: it cannot be installed or started.
        WrongAnswer: it, or we, failed while it was measured.
    """
    python = installed(peer, setting.cache)
    engines = [question.workload.engine for question in QUESTIONS]
    scratch = setting.scratch / peer.name
    with running(peer, python, setting.models, engines, scratch) as started:
        for question in QUESTIONS:
            await started.wait_until_right(question.workload)
        return [await _ask(question, started, setting) for question in QUESTIONS]


async def _ask(question: Question, started: RunningPeer, setting: Setting) -> Section:
    peer = started.peer
    ways = [way for way, *_ in question.compared]
    note = peer.note
    answered = ways
    if reason := await started.why_not(question.workload, stream=True):
        answered = [way for way in ways if way.call == "unary"]
        note += f" It does not take requests on a stream: {reason.rstrip('.!')}."
    async with contextlib.AsyncExitStack() as stack:
        asked = [
            *probes(stack, peer.title, started.address, question.workload, answered, peer.dialect),
            *probes(stack, GATEWAY, setting.own.gateway, question.workload, ways),
            *probes(stack, APART, setting.apart.gateway, question.workload, ways),
        ]
        measured = await in_turns(asked, setting.seconds * question.seconds, setting.rounds)
    return Section(
        title=f"{peer.title}: {question.title}",
        note=note,
        rows=[peer.title, GATEWAY, APART],
        columns=[str(way) for way in ways],
        measured=measured,
        comparisons=[
            Comparison(
                text=f"our {_UNITS[unit]} by theirs: {way}{where}",
                value=measured.ratio(unit, (row, str(way)), (peer.title, str(way))),
                at_most=at_most if peer.name == "triton" else None,
                at_least=at_least if peer.name == "triton" else None,
            )
            for row, where in ((GATEWAY, ""), (APART, ", on cores of their own"))
            for way, unit, at_most, at_least in question.compared
            if way in answered
        ],
    )
