"""Workers whose clocks are broken, or that lie about what their work took."""

import pytest
from msgspec.structs import replace

from synergai.core.scheduling.events import AssignmentStarted, JobArrived
from synergai.domain import JobId
from tests.cores import dispatched, end, make_core, new_job, new_request, new_worker

TIMES = [5e-324, 1e-12, 1e-9, 1e9]
ARRIVALS = [
    new_request("request", "engine"),
    new_job("job", "engine", 100),
    new_job("job over own inputs", "engine", 100, with_tensors=True),
]


@pytest.mark.parametrize("setup_s", [0.0, 1e9])
@pytest.mark.parametrize("seconds", TIMES)
@pytest.mark.parametrize("arrival", ARRIVALS)
def test_engine_is_measured_whatever_time_its_worker_reports(
    arrival: JobArrived, seconds: float, setup_s: float
) -> None:
    core = make_core([], [new_worker("worker", "class", ["engine"])])
    now = 0.0
    for number in range(40):
        job = replace(arrival.job, id=JobId(f"{number}"), arrival=now)
        commands = core.handle(replace(arrival, job=job), now)
        while assignments := dispatched(commands):
            now += 1.0
            commands = []
            for assignment in assignments:
                core.handle(AssignmentStarted(assignment.id, setup_s), now)
                commands += end(core, assignment, now + 0.5, compute_s=seconds)
    assert core.queued == 0
