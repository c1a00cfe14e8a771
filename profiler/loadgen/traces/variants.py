"""Variants that answered the requests of a run, and the accuracy of the answers.

The accuracy of a variant is that of the gateway's dictionary, over all worker classes, or else what
the workers declare. Late and missing answers have none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.loadgen.outcome import RequestOutcome
from synergai.versions import split_variant, split_version, versioned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from profiler.loadgen.traces.request_log import RequestLog
    from synergai.client.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigures:
    """Figures of a run on an engine with variants.

    Attributes:
        answers: completed requests by variant, the most frequent first.
        effective_accuracy: mean accuracy over all requests, 0 for those without a response in time.
        floor_violations: completed requests whose variant is below the floor.
    """

    answers: dict[str, int]
    accuracies: dict[str, float]
    effective_accuracy: float
    floor_violations: int


def variant_figures(
    log: RequestLog, accuracies: Mapping[str, float], floor: float = 0.0
) -> VariantFigures | None:
    """Return the figures of a run; None if its engine has no variants."""
    answers: Counter[str] = Counter()
    total, violations = 0.0, 0
    for version, outcome in zip(log.versions, log.outcomes, strict=True):
        variant = split_variant(version)[1]
        if not variant:
            continue
        answers[variant] += 1
        accuracy = accuracies.get(variant, 0.0)
        violations += accuracy < floor
        if outcome is RequestOutcome.MET:
            total += accuracy
    if not answers:
        return None
    return VariantFigures(
        answers=dict(answers.most_common()),
        accuracies=dict(accuracies),
        effective_accuracy=total / len(log),
        floor_violations=violations,
    )


async def read_accuracies(client: Client, engine: str) -> dict[str, float]:
    """Return the accuracy of each variant of an engine, as far as it is known."""
    name, version = split_version(engine)
    number = split_variant(version)[0]
    wanted = versioned(name, number)
    found: dict[str, float] = {}
    for worker in await client.workers():
        for described in worker.engines:
            if described.name == wanted:
                found |= {each.name: each.accuracy for each in described.variants if each.accuracy}
    right: Counter[str] = Counter()
    samples: Counter[str] = Counter()
    for entry in await client.dictionary():
        if entry.engine == wanted and entry.accuracy_samples:
            variant = entry.configuration.variant
            samples[variant] += entry.accuracy_samples
            right[variant] += round(entry.accuracy * entry.accuracy_samples)
    return found | {variant: right[variant] / samples[variant] for variant in samples if variant}
