"""Scheduling of configurations with execution providers, and of those that cannot be used."""

import pytest

from synergai import domain
from synergai.core.scheduling import events
from synergai.core.scheduling.core import SchedulerCore
from tests.cores import dispatched, end, make_core, new_entry, new_job, new_worker

DIGITS = domain.EngineName("digits")
BOARD = domain.WorkerId("board")
CLASS = domain.WorkerClass("class")
CPU_1, CPU_2 = domain.Configuration(1), domain.Configuration(2)
CUDA = domain.Configuration(0, "", "CUDA")
XNNPACK = domain.Configuration(2, "", "XNNPACK")


def core_with(qps: dict[domain.Configuration, float]) -> SchedulerCore:
    entries = (new_entry(DIGITS, CLASS, rate, configuration) for configuration, rate in qps.items())
    return make_core(entries, policy="synergai")


def join(
    core: SchedulerCore,
    *configurations: domain.Configuration,
    unusable: frozenset[domain.Session] = frozenset(),
    name: domain.WorkerId = BOARD,
) -> None:
    worker = new_worker(name, CLASS, [DIGITS], configurations, loaded=(), unusable=unusable)
    core.handle(events.WorkerJoined(worker), 0.0)


def arrive(core: SchedulerCore, now: float = 0.0, name: str = "job") -> list[events.Assignment]:
    return dispatched(core.handle(new_job(name, DIGITS, 10, now), now))


def fail(core: SchedulerCore, assignment: events.Assignment, now: float) -> list[events.Command]:
    how = {"fault": domain.Fault.CONFIGURATION_UNUSABLE, "detail": "no device"}
    return end(core, assignment, now, domain.Outcome.FAILED, done=0, **how)


@pytest.mark.parametrize(
    ("qps", "offered", "chosen"),
    [
        pytest.param({CPU_2: 10.0, CUDA: 100.0}, (CPU_1, CPU_2, CUDA), CUDA, id="faster provider"),
        pytest.param({CPU_2: 100.0, CUDA: 10.0}, (CPU_1, CPU_2, CUDA), CPU_2, id="faster CPU"),
        pytest.param({}, (CPU_1, CPU_2, CUDA, XNNPACK), CPU_2, id="unprofiled: the CPU"),
        pytest.param({}, (CUDA,), CUDA, id="unprofiled: the only provider"),
    ],
)
def test_engine_runs_with_the_fastest_provider_and_is_measured_on_the_cpu(
    qps: dict[domain.Configuration, float],
    offered: tuple[domain.Configuration, ...],
    chosen: domain.Configuration,
) -> None:
    core = core_with(qps)
    join(core, *offered)
    assert arrive(core)[0].configuration == chosen


def test_configuration_that_cannot_be_used_leaves_the_others_in_service() -> None:
    core = core_with({CPU_2: 10.0, CUDA: 100.0})
    join(core, CPU_1, CPU_2, CUDA)
    [first] = arrive(core)
    [second] = dispatched(fail(core, first, 1.0))
    assert second.configuration == CPU_2
    assert (second.first, second.count) == (0, 10)


def test_engine_is_measured_again_if_all_profiled_configurations_cannot_be_used() -> None:
    core = core_with({CUDA: 100.0})
    join(core, CPU_1, CPU_2, CUDA)
    [first] = arrive(core)
    [second] = dispatched(fail(core, first, 1.0))
    assert second.probe
    assert second.configuration == CPU_2


def test_job_fails_once_no_configuration_of_any_worker_is_left() -> None:
    core = core_with({CUDA: 100.0})
    join(core, CUDA)
    [first] = arrive(core)
    [failed] = fail(core, first, 1.0)
    assert isinstance(failed, events.Fail)
    assert failed.reason == "no device"


def test_configuration_known_to_be_unusable_is_never_assigned() -> None:
    core = core_with({CPU_1: 10.0, CUDA: 100.0})
    join(core, CPU_1, CUDA, unusable=frozenset({domain.Session(DIGITS, CUDA)}))
    assert arrive(core)[0].configuration == CPU_1


def test_engine_without_any_usable_configuration_is_not_served_until_it_has_one() -> None:
    core = core_with({CUDA: 100.0})
    join(core, CUDA, unusable=frozenset({domain.Session(DIGITS, CUDA)}))
    assert arrive(core) == []
    core.handle(events.ConfigurationsUnusable(BOARD, DIGITS, frozenset()), 1.0)
    commands = core.handle(events.EnginesChanged(BOARD, frozenset({DIGITS})), 1.0)
    assert dispatched(commands)[0].configuration == CUDA


def test_report_of_unusable_configurations_replaces_the_one_before() -> None:
    core = core_with({CPU_1: 10.0, CPU_2: 20.0, CUDA: 100.0})
    join(core, CPU_1, CPU_2, CUDA)
    core.handle(events.ConfigurationsUnusable(BOARD, DIGITS, frozenset({CUDA})), 0.0)
    core.handle(events.ConfigurationsUnusable(BOARD, DIGITS, frozenset({CPU_2})), 0.0)
    assert arrive(core)[0].configuration == CUDA


def test_workers_with_the_faster_provider_get_work_first() -> None:
    core = core_with({CPU_2: 10.0, CUDA: 100.0})
    join(core, CPU_1, CPU_2)
    join(core, CUDA, name=domain.WorkerId("gpu-0"))
    join(core, CUDA, name=domain.WorkerId("gpu-1"))
    found = [*arrive(core, 0.0, "a"), *arrive(core, 0.0, "b"), *arrive(core, 0.0, "c")]
    assert {each.worker_id for each in found[:2]} == {"gpu-0", "gpu-1"}
    assert all(each.configuration == CUDA for each in found[:2])


def test_largest_configuration_is_on_the_cpu_and_in_the_fastest_mode_whatever_its_name() -> None:
    slow, fast = domain.Configuration(8, "MODE_30W_ALL"), domain.Configuration(8, "MAXN")
    assert domain.largest_configuration([slow, fast, domain.Configuration(4, "MODE_Z")]) == fast
    provider = domain.Configuration(8, "", "XNNPACK")
    assert domain.largest_configuration([provider, CPU_1, CPU_2, CUDA]) == CPU_2
    assert domain.largest_configuration([CUDA, provider]) == provider
