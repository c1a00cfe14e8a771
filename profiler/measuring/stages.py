"""Measurement of stages: the parts before and behind some cuts of an engine.

The whole engine and both parts of a cut run in many short turns, so that a drift of the machine
does not look like a difference between them. Other processes only lengthen turns, so the shorter
ones are compared.
"""

from __future__ import annotations

import math
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from os import getpid
from pathlib import Path
from statistics import quantiles, stdev
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from profiler.cutting.chain import planned_cuts
from profiler.cutting.stages import split_engine
from profiler.dictionary.origins import EngineOrigins, agent_version
from profiler.measuring.conditions import DISTURBED_SHARE, BackgroundLoad
from profiler.measuring.host_client import HostClient
from synergai.domain import Session
from synergai.profiles.dictionary import DISTURBED, MEASURED, ProfileEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from profiler.cutting.cuts import Cut
    from profiler.cutting.stages import CutEngine
    from synergai.domain import Configuration, EngineName, WorkerClass
    from worker_agent.providers import ProviderChoice

_SEAMS_PER_MEASURED: Final = 3
_TURNS: Final = 24
_TURN_S: Final = 0.05
_WARM_UP_QUERIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSetting:
    """Where and how stages are measured."""

    models: Path
    worker_class: WorkerClass
    configuration: Configuration
    cores: Sequence[int] = ()
    provider: ProviderChoice | None = None


def measured_cuts(cuts: Sequence[Cut]) -> list[Cut]:
    """Return the cuts to measure: every third of those that plans consider."""
    seams = planned_cuts(cuts)
    return seams[_SEAMS_PER_MEASURED // 2 :: _SEAMS_PER_MEASURED] or seams[:1]


def measure_stages(
    engine: CutEngine, setting: StageSetting, whole: ProfileEntry | None = None
) -> Iterator[list[ProfileEntry]]:
    """Measure heads and tails; yield the entries of one cut after another.

    Args:
        whole: the entry of the engine that the times of stages refer to; without one, the first
            yield has it as well.
    """
    for cut in measured_cuts(engine.cuts):
        measured, *stages = measure_split(engine, [cut.tensor], setting)
        first = [] if whole else [measured]
        whole = whole or measured
        ratio = whole.qps / measured.qps
        yield first + [replace(each, qps=each.qps * ratio) for each in stages]


def measure_split(
    engine: CutEngine, tensors: Sequence[str], setting: StageSetting
) -> list[ProfileEntry]:
    """Return entries of the whole engine, and then of its stages between some cuts."""
    with ExitStack() as context:
        folder = Path(context.enter_context(tempfile.TemporaryDirectory(prefix="synergai-")))
        stages = split_engine(engine, folder, tensors, lambda *_: None)
        whole = engine.definition.name
        places = {whole: setting.models} | {each.name: folder for each in stages}
        hosts = {
            name: context.enter_context(
                HostClient(
                    models,
                    Session(name, setting.configuration),
                    cores=setting.cores,
                    provider=setting.provider,
                )
            )
            for name, models in places.items()
        }
        own = [getpid(), *(host.pid for host in hosts.values())]
        with BackgroundLoad(own) as background:
            turns = _take_turns(hosts)
        origins = EngineOrigins(setting.models), EngineOrigins(folder)
        entries = []
        for name, host in hosts.items():
            origin = origins[name != whole].of(name)
            entries.append(
                ProfileEntry(
                    engine=name,
                    worker_class=setting.worker_class,
                    configuration=setting.configuration,
                    qps=1 / quantiles(turns[name], n=4)[0],
                    error=stdev(map(math.log, turns[name])) / math.sqrt(_TURNS),
                    repeats=1,
                    queries=_TURNS,
                    backend_start_s=host.ready.backend_start_s,
                    model_load_s=host.ready.model_load_s,
                    data_preparation_s=host.ready.data_preparation_s,
                    label=DISTURBED if background.share > DISTURBED_SHARE else MEASURED,
                    background=background.share,
                    measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
                    digest=origin.digest,
                    runtime=origin.runtime,
                    agent=agent_version(),
                )
            )
        return entries


def _take_turns(hosts: Mapping[EngineName, HostClient]) -> dict[EngineName, list[float]]:
    """Return the seconds per query of each turn."""
    counts = {
        name: max(1, round(_TURN_S / _per_query_s(host, _WARM_UP_QUERIES)))
        for name, host in hosts.items()
    }
    turns: dict[EngineName, list[float]] = {name: [] for name in hosts}
    for _ in range(_TURNS):
        for name, host in hosts.items():
            turns[name].append(_per_query_s(host, counts[name]))
    return turns


def _per_query_s(host: HostClient, queries: int) -> float:
    started = time.monotonic()
    host.run_samples(0, queries)
    return (time.monotonic() - started) / queries
