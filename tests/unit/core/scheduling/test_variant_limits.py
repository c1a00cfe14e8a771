"""Floors and pinned variants hold where an engine is measured in service, and for copies."""

from typing import Any

import pytest
from msgspec.structs import replace

from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import Configuration, EngineName, Session, Variant, WorkerClass, WorkerId
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
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


@pytest.mark.parametrize("profiled", [False, True])
def test_single_file_that_is_a_variant_answers_requests_that_name_it(*, profiled: bool) -> None:
    entries = [make_entry("")] if profiled else []
    core = SchedulerCore(SchedulingSettings(preload=False), ConfigurationDictionary(entries))
    worker = new_worker("worker", CLASS, [FAMILY])
    core.handle(events.WorkerJoined(worker), 0.0)
    assert submit(core, "large", deadline=1e9) == []
    assert submit(core, "small", deadline=1e9) == []
    known = events.EnginesChanged(worker.id, worker.engines, file_variants={FAMILY: "large"})
    [assignment] = dispatched(core.handle(known, 1.0))
    assert assignment.job_id == "large-0.0-0"
    assert assignment.configuration == Configuration(1)
    assert assignment.probe == (not profiled)


def test_request_that_may_use_a_profiled_variant_measures_no_other() -> None:
    [assignment] = submit(core_with("medium", "small"), floor=0.8)
    assert not assignment.probe
    assert assignment.configuration.variant == "medium"


def test_request_that_may_measure_nothing_interrupts_no_job() -> None:
    core = core_with(other=True)
    [running] = dispatched(core.handle(new_job("job", PLAIN, 10_000), 0.0))
    core.handle(events.AssignmentStarted(running.id, 0.0), 0.0)
    assert submit(core, floor=0.95) == []


def family_worker(number: int, digest: str = "a") -> events.Worker:
    """Return a worker with an original and an 8-bit variant, which has loaded nothing."""
    variants = (Variant(name="full", digest=digest), Variant(name="int8", digest="b"))
    fields = {"variants": {FAMILY: variants}}
    both = (ONE, Configuration(2))
    return new_worker(f"worker-{number}", CLASS, [FAMILY], both, loaded=(), **fields)


def profiled_variants(core: SchedulerCore, number: int = 0) -> list[tuple[str, float]]:
    profiles = core.profiles(WorkerId(f"worker-{number}"))
    return [(entry.configuration.variant, entry.qps) for entry, _ in profiles]


@pytest.mark.parametrize("added_later", [True, False])
def test_profile_of_a_file_counts_for_the_variant_that_it_becomes(*, added_later: bool) -> None:
    before = replace(make_entry(""), digest="a")
    core = SchedulerCore(
        SchedulingSettings(preload=False), ConfigurationDictionary([] if added_later else [before])
    )
    core.handle(events.WorkerJoined(family_worker(0)), 0.0)
    if added_later:
        core.handle(events.ProfilesAdded((before,)), 0.0)
    assert profiled_variants(core) == [("full", 10.0)]
    [assignment] = submit(core)
    assert assignment.configuration == Configuration(1, variant="full")
    core.handle(events.ProfilesRemoved((before,)), 0.0)
    assert not profiled_variants(core)


OF_FILE = replace(make_entry("", 10.0), digest="a")


@pytest.mark.parametrize(
    ("entries", "added", "profiled"),
    [
        pytest.param([OF_FILE], [replace(OF_FILE, qps=20.0)], [("full", 20.0)], id="a new one"),
        pytest.param([replace(OF_FILE, digest="x")], [], [], id="of another file"),
        pytest.param([replace(OF_FILE, digest="")], [], [], id="of an unknown file"),
        pytest.param(
            [OF_FILE, make_entry("full", 20.0)], [], [("full", 20.0)], id="of the variant"
        ),
    ],
)
def test_profile_that_counts_for_a_variant_is_its_own_or_the_last_one_of_its_file(
    entries: list[ProfileEntry], added: list[ProfileEntry], profiled: list[tuple[str, float]]
) -> None:
    core = SchedulerCore(SchedulingSettings(preload=False), ConfigurationDictionary(entries))
    core.handle(events.WorkerJoined(family_worker(0)), 0.0)
    core.handle(events.ProfilesAdded(tuple(added)), 0.0)
    assert profiled_variants(core) == profiled


def test_profile_counts_once_a_worker_gets_variants() -> None:
    before = replace(make_entry(""), digest="a")
    core = SchedulerCore(SchedulingSettings(preload=False), ConfigurationDictionary([before]))
    worker = family_worker(0)
    for number in (0, 1):
        joined = replace(worker, id=WorkerId(f"worker-{number}"), variants={})
        core.handle(events.WorkerJoined(joined), 0.0)
    core.handle(events.EnginesChanged(worker.id, worker.engines, worker.variants), 0.0)
    assert profiled_variants(core, 0) == [("full", 10.0)]
    assert profiled_variants(core, 1) == [("", 10.0)]


def test_workers_with_and_without_variants_share_requests_that_name_none() -> None:
    entries = [
        replace(make_entry("", 10.0), digest="a"),
        replace(make_entry("int8", 40.0), digest="b"),
    ]
    core = SchedulerCore(SchedulingSettings(preload=False), ConfigurationDictionary(entries))
    core.handle(events.WorkerJoined(family_worker(0)), 0.0)
    core.handle(events.WorkerJoined(replace(family_worker(1), variants={})), 0.0)
    found = [each for number in range(4) for each in submit(core, number=number)]
    assert {(each.worker_id, each.configuration.variant) for each in found} == {
        ("worker-0", "full"),
        ("worker-1", ""),
    }
    assert {each.worker_id for each in submit(core, "int8")} <= {"worker-0"}
