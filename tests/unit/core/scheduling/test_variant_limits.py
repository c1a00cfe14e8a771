"""Floors and pinned variants hold where an engine is measured in service, and for copies."""

from typing import Any

import pytest
from msgspec.structs import replace

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.domain import Configuration, EngineName, Session, Variant, WorkerClass
from synergai.profiles.dictionary import ProfileEntry
from tests.cores import ONE, dispatched, make_core, new_entry, new_job, new_request, new_worker

FAMILY, PLAIN = EngineName("fashion"), EngineName("digits")
CLASS = WorkerClass("server")
DECLARED = {"large": 0.9, "medium": 0.85, "small": 0.0}
"""Accuracies; that of the last one is not known."""


def make_entry(variant: str, qps: float = 10.0) -> ProfileEntry:
    return new_entry(FAMILY, CLASS, qps, Configuration(1, variant=variant))


def core_with(*profiled: str, workers: int = 1, other: bool = False) -> SchedulerCore:
    """Return a core with workers that have the family loaded, and profiles of some variants.

    The last one is the fastest.

    Args:
        profiled: names of the profiled variants.
        workers: number of workers.
        other: whether they have a profiled engine without variants as well.
    """
    entries = [make_entry(name, 10.0 * (1 + number)) for number, name in enumerate(profiled)]
    if other:
        entries.append(replace(make_entry(""), engine=PLAIN))
    variants = tuple(Variant(name=name, accuracy=value) for name, value in DECLARED.items())
    described = [
        new_worker(
            f"worker-{number}",
            CLASS,
            [FAMILY, PLAIN] if other else [FAMILY],
            (ONE, Configuration(2)),
            loaded=[Session(FAMILY, Configuration(1, variant=name)) for name in DECLARED],
            variants={FAMILY: variants},
        )
        for number in range(workers)
    ]
    return make_core(entries, described)


def submit(
    core: SchedulerCore,
    variant: str = "",
    floor: float = 0.0,
    deadline: float = 100.0,
    *,
    number: int = 0,
) -> list[events.Assignment]:
    name = f"{variant}-{floor}-{number}"
    fields: dict[str, Any] = {"deadline": deadline, "variant": variant, "min_accuracy": floor}
    return dispatched(core.handle(new_request(name, FAMILY, **fields), 0.0))


@pytest.mark.parametrize(
    ("variant", "floor", "expected"),
    [("", 0.0, "large"), ("small", 0.0, "small"), ("", 0.87, "large"), ("medium", 0.8, "medium")],
)
def test_engine_is_measured_in_a_variant_that_the_request_may_use(
    variant: str, floor: float, expected: str
) -> None:
    [probe] = submit(core_with(), variant, floor)
    assert probe.probe
    assert probe.configuration == Configuration(2, variant=expected)


@pytest.mark.parametrize(("variant", "floor"), [("tiny", 0.0), ("", 0.95), ("small", 0.1)])
def test_engine_is_not_measured_by_a_request_that_may_use_no_variant(
    variant: str, floor: float
) -> None:
    core = core_with()
    assert submit(core, variant, floor) == []
    [probe] = submit(core)
    assert probe.job_id == "-0.0-0"


@pytest.mark.parametrize(("variant", "floor"), [("large", 0.0), ("", 0.87)])
def test_variant_without_a_profile_is_measured_when_it_is_needed(
    variant: str, floor: float
) -> None:
    core = core_with("small")
    [probe] = submit(core, variant, floor)
    assert probe.probe
    assert probe.configuration.variant == "large"


def test_request_that_may_use_a_profiled_variant_measures_no_other() -> None:
    [assignment] = submit(core_with("medium", "small"), floor=0.8)
    assert not assignment.probe
    assert assignment.configuration.variant == "medium"


def test_request_that_may_measure_nothing_interrupts_no_job() -> None:
    core = core_with(other=True)
    [running] = dispatched(core.handle(new_job("job", PLAIN, 10_000), 0.0))
    core.handle(events.AssignmentStarted(running.id, 0.0), 0.0)
    assert submit(core, floor=0.95) == []
