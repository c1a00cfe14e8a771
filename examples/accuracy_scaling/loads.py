"""The same load, answered by variants of the gateway's choice or by a single one."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.variants.bounds import accuracy_at_most
from benchmarks.variants.demand import draw_arrivals
from benchmarks.variants.simulation import Scenario
from examples.accuracy_scaling.fleet import WORKERS, most_accurate
from profiler.loadgen.outcome import RequestOutcome
from profiler.loadgen.traces.request_log import read_accuracies, variant_figures
from profiler.loadgen.traces.run import send_open_loop
from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.models.samples import load_samples
from synergai.names import split_variant

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from profiler.loadgen.traces.request_log import RequestLog
    from synergai.client.client import Client
    from synergai.domain import EngineName
    from synergai.profiles.dictionary import ProfileEntry

DEADLINE_S: Final = 0.4
SECONDS: Final = 30
OVERLOAD: Final = 1.5
"""Greatest mean rate, in times of what all workers manage with the most accurate variant."""
FASTEST_SHARE: Final = 0.55
"""Greatest mean rate, as a share of what they manage with the fastest one: the rate doubles at
times."""
_SEED: Final = 7
_WARM_UP: Final = 20
"""Requests for each worker before a run."""
_WARM_UP_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a load got.

    Attributes:
        name: which variants were allowed.
        log: its requests.
        effective_accuracy: by the profile, 0 for requests without an answer in time.
        right: share of the requests that got the right answer in time, by the labels.
        violations: share of the requests without an answer in time.
        shares: share of each variant in the answers.
    """

    name: str
    log: RequestLog
    effective_accuracy: float
    right: float
    violations: float
    shares: dict[str, float]


def draw(entries: Sequence[ProfileEntry]) -> list[float]:
    """Return times of arrival that vary like posts in a message service."""
    fastest = max(entry.qps for entry in entries)
    rate = WORKERS * min(OVERLOAD * most_accurate(entries).qps, FASTEST_SHARE * fastest)
    return draw_arrivals("twitter", rate, SECONDS, _SEED)


def bound(entries: Sequence[ProfileEntry], arrivals: Sequence[float]) -> float:
    """Return what no choice of variants exceeds, had it known all arrivals beforehand."""
    engine = entries[0].engine
    front = {each.configuration.variant: (1.0 / each.qps, each.accuracy) for each in entries}
    scenario = Scenario(
        name="example",
        fronts={engine: front},
        layout=[frozenset({engine})] * WORKERS,
        deadline_s=DEADLINE_S,
    )
    return accuracy_at_most(scenario, engine, arrivals)


async def run(
    client: Client,
    models: Path,
    engine: EngineName,
    name: str,
    version: str,
    arrivals: Sequence[float],
) -> Run:
    """Send the load, and return what it got.

    Args:
        client: of the gateway.
        models: model directory with the labelled samples.
        engine: the engine.
        name: name of the run.
        version: version to ask for; empty leaves the variant to the gateway.
        arrivals: times of the requests in seconds.

    Raises:
        InvalidInput: the samples have no labels.
        SynergaiError: the gateway is unreachable.
    """
    described = await client.engine(engine)
    samples = load_samples(ModelDirectory(models).get(engine), described.inputs)
    if samples.labels is None:
        raise InvalidInput(f"the samples of {engine} have no labels")
    labels = samples.labels
    asked = f"{engine}/{version}" if version else engine
    right: set[int] = set()

    async def send(number: int, deadline: float | None) -> str:
        sample = number % len(samples)
        inputs = samples.inputs[sample]
        result = await client.infer(asked, inputs, deadline=deadline)
        [output] = result.outputs.values()
        if int(output.argmax()) == labels[sample]:
            right.add(number)
        return result.version

    # All at once, so that every worker gets some.
    await asyncio.gather(*(send(number, _WARM_UP_S) for number in range(_WARM_UP * WORKERS)))
    right.clear()
    log = await send_open_loop(send, arrivals, deadline_s=DEADLINE_S)
    figures = variant_figures(log, await read_accuracies(client, engine))
    answers = Counter(split_variant(each)[1] for each in log.versions if each)
    in_time = {
        due for due, each in zip(log.due, log.outcomes, strict=True) if each is RequestOutcome.MET
    }
    return Run(
        name=name,
        log=log,
        effective_accuracy=0.0 if figures is None else figures.effective_accuracy,
        right=sum(arrivals[number] in in_time for number in right) / len(log),
        violations=1.0 - log.outcomes.count(RequestOutcome.MET) / len(log),
        shares={each: count / answers.total() for each, count in answers.most_common()},
    )
