"""Event logs of staged runs, for the fleet page. No core made their decisions."""

import random
from collections.abc import Iterator
from pathlib import Path

from synergai import domain
from synergai.core.scheduling import events
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.profiles.dictionary import ConfigurationDictionary
from tests.cores import new_assignment, new_job, new_worker

Step = tuple[events.Event, float, list[events.Command]]
ENGINES = ("resnet50", "mobilenet", "bert", "yolo", "<img src=x onerror=alert(1)>")
MODES = ("MAXN", "15W", "")


def staged_run(workers: int, assignments: int, seed: int = 1) -> Iterator[Step]:
    """Return steps in which each worker runs jobs one after another, some of them late.

    The last engine's name is HTML, as if no gateway had checked it.
    """
    draw = random.Random(seed)
    steps: list[Step] = []
    for number in range(workers):
        worker = new_worker(
            f"edge-{number:03}",
            ("x86", "agx-xavier", "nano")[number % 3],
            ENGINES,
            (domain.Configuration(4),),
            loaded=False,
            power_mode=MODES[number % 3],
        )
        steps.append((events.WorkerJoined(worker), 0.0, []))
    free = [0.5 + draw.random() for _ in range(workers)]
    for number in range(assignments):
        place = number % workers
        arrival = free[place] - draw.expovariate(2)
        estimate = draw.uniform(1, 6)
        took = estimate * draw.choice((0.8, 1.0, 1.1, 1.6))
        arrived = new_job(
            f"job-{number:05}",
            draw.choice(ENGINES),
            10,
            max(0.0, arrival),
            deadline=free[place] + estimate * draw.uniform(0.9, 2.5),
        )
        job = arrived.job
        assignment = new_assignment(
            number + 1,
            job.engine,
            f"edge-{place:03}",
            10,
            domain.Configuration(4, MODES[place % 3]),
            job_id=job.id,
            setup_s=0.2 * estimate,
            estimate_s=estimate,
        )
        key = assignment.id
        began, ended = free[place], free[place] + took
        steps.append((arrived, job.arrival, []))
        steps.append((events.TimePassed(), began, [events.Dispatch(assignment)]))
        steps.append((events.AssignmentStarted(key, 0.2), began + 0.2 * took, []))
        if number < assignments - workers // 2:
            end = events.AssignmentEnded(key, 10, domain.Outcome.COMPLETED)
            steps.append((end, ended, [events.Finish(job.id)]))
        if number % 50 == 49:
            steps.append((events.ModeChanged(assignment.worker_id, "30W"), ended, []))
        free[place] = ended + draw.choice((0.05, 0.05, 1.5))
    for number in range(6):
        waiting = new_job(f"late-{number}", "bert", 40, 1.0, deadline=max(free) + 5 * number - 10)
        steps.append((waiting, 1.0, []))
    # Stable: events of one time stay in order.
    return iter(sorted(steps, key=lambda step: step[1]))


def write_run(path: Path, workers: int = 8, assignments: int = 120) -> Path:
    with EventLog(path, SchedulingSettings(), ConfigurationDictionary(), epoch=1) as log:
        for event, at, commands in staged_run(workers, assignments):
            log.record(event, at, commands)
    return path
