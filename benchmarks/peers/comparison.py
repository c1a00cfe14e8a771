"""Comparison of one peer with the gateway."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.call_patterns import (
    STREAM_1,
    STREAM_3,
    STREAM_16,
    UNARY_1,
    UNARY_16,
    CallPattern,
    probes,
)
from benchmarks.interleaving import measure_interleaved
from benchmarks.peers import perf_analyzer
from benchmarks.peers.environment import ensure_installed
from benchmarks.peers.peer_process import RunningPeer, run_peer
from benchmarks.report import Comparison, Section, table
from benchmarks.servers import GATEWAY, PINNED, SERVE, resident_mb
from benchmarks.workloads import Workload, identity, mobilenet
from synergai.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.interleaving import Measurements, Metric
    from benchmarks.peers.registry import Peer
    from demo.local_fleet import LocalFleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload, its call patterns, and the metrics to compare.

    Attributes:
        title: human-readable name.
        workload: request to send.
        seconds: duration of each probe, as a multiple of the command line's.
        compared: call pattern, metric, and the maximum and minimum of our figure relative to
            Triton's, if there is a target.
    """

    title: str
    workload: Workload
    seconds: float
    compared: Sequence[tuple[CallPattern, Metric, float | None, float | None]]


SCENARIOS: Final = (
    Scenario(
        title="identity",
        workload=identity(),
        seconds=1.0,
        compared=(
            (UNARY_1, "median_ms", 1.35, None),
            (UNARY_16, "per_second", None, 1.0),
            (STREAM_1, "median_ms", 1.35, None),
            (STREAM_16, "per_second", None, 0.95),
        ),
    ),
    Scenario(
        title="MobileNet",
        workload=mobilenet(),
        seconds=2.0,
        compared=(
            (UNARY_1, "median_ms", 1.0, None),
            (STREAM_3, "per_second", None, None),
        ),
    ),
)
_METRIC_NAMES: Final = {"median_ms": "median", "per_second": "throughput"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Parameters that are the same for all peers.

    Attributes:
        servers: SynergAI with default settings.
        serve: SynergAI in one process.
        pinned: SynergAI with gateway and engine pinned; see `PINNED`.
        models: the model directory.
        cache: directory of the virtual environments.
        scratch: directory for files of the servers.
        seconds: duration of a probe per round.
        rounds: number of rounds.
    """

    gateway: str
    serve: LocalFleet
    pinned: str
    models: Path
    cache: Path
    scratch: Path
    seconds: float
    rounds: int


async def measure(peer: Peer, setup: Setup) -> list[Section]:
    """Install and run `peer`, and measure it and the gateway in every scenario.

    Raises:
        Unavailable: the peer cannot be installed or started.
        WrongResponse: the peer or the gateway failed.
    """
    python = ensure_installed(peer, setup.cache)
    engines = [scenario.workload.engine for scenario in SCENARIOS]
    scratch = setup.scratch / peer.name
    with run_peer(peer, python, setup.models, engines, scratch) as started:
        for scenario in SCENARIOS:
            await started.wait_until_correct(scenario.workload)
        sections = [await _measure_scenario(scenario, started, setup) for scenario in SCENARIOS]
        if peer.name == "triton":
            addresses = {peer.title: started.address, SERVE: setup.serve.address}
            try:
                tool = perf_analyzer.install(setup.cache)
                sections.append(
                    await perf_analyzer.measure(tool, addresses, setup.scratch, setup.rounds)
                )
            except Unavailable as error:
                print(f"not measured: {error}", flush=True)
        return sections


async def _measure_scenario(scenario: Scenario, started: RunningPeer, setup: Setup) -> Section:
    peer = started.peer
    patterns = [pattern for pattern, *_ in scenario.compared]
    about = [peer.note]
    supported = patterns
    if reason := await started.failure_reason(scenario.workload, stream=True):
        supported = [pattern for pattern in patterns if pattern.call == "unary"]
        about.append(f"It does not support streams: {reason.rstrip('.!')}.")
    async with contextlib.AsyncExitStack() as stack:
        probes_to_run = [
            *probes(stack, peer.title, started.address, scenario.workload, supported, peer.dialect),
            *probes(stack, GATEWAY, setup.gateway, scenario.workload, patterns),
            *probes(stack, SERVE, setup.serve.address, scenario.workload, patterns),
            *probes(stack, PINNED, setup.pinned, scenario.workload, patterns),
        ]
        measured = await measure_interleaved(
            probes_to_run, setup.seconds * scenario.seconds, setup.rounds
        )
    assert setup.serve.gateway is not None
    memory = (
        f"Resident memory: {peer.title} {resident_mb(started.process):.0f} MB, "
        f"serve {resident_mb(setup.serve.gateway):.0f} MB."
    )
    return Section(
        title=f"{peer.title}: {scenario.title}",
        # The first section says what the peer is, the last one what it needs in the end.
        note=" ".join(about) if scenario is SCENARIOS[0] else memory,
        rows=[peer.title, GATEWAY, SERVE, PINNED],
        columns=[str(pattern) for pattern in patterns],
        measured=measured,
        tables=[_ratios(scenario, peer, measured, supported)],
    )


def _ratios(
    scenario: Scenario, peer: Peer, measured: Measurements, supported: Sequence[CallPattern]
) -> str:
    """Return the table of our figures over the peer's."""
    ours = (GATEWAY, SERVE)
    header, columns = ["ours / theirs"], [list(ours)]
    for pattern, metric, at_most, at_least in scenario.compared:
        if pattern not in supported:
            continue
        has_target = peer.name == "triton"
        cells = [
            Comparison(
                text=f"{_METRIC_NAMES[metric]}: {pattern}",
                value=measured.ratio(metric, (row, str(pattern)), (peer.title, str(pattern))),
                at_most=at_most if has_target else None,
                at_least=at_least if has_target else None,
            ).cells()
            for row in ours
        ]
        text, _, target = cells[0]
        header.append(f"{text} ({target})" if target else text)
        columns.append([ratio for _, ratio, _ in cells])
    return table(header, list(zip(*columns, strict=True)))
