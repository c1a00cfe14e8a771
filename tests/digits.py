"""Scheduling cores for the engine ``digits`` and a fast and a slow worker."""

import math
from typing import Any

from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import JobArrived, WorkerJoined
from synergai.domain import Configuration, EngineName, WorkerClass, WorkerId
from synergai.profiles.dictionary import ProfileEntry
from tests.cores import ONE, make_core, new_entry, new_job, new_worker

DIGITS = EngineName("digits")
TWO = Configuration(2)
FAST, SLOW = WorkerClass("fast"), WorkerClass("slow")
FAST_1, SLOW_1 = WorkerId("fast-1"), WorkerId("slow-1")


def make_entry(
    worker_class: WorkerClass, qps: float, configuration: Configuration = ONE, t_pre: float = 0.0
) -> ProfileEntry:
    return new_entry(DIGITS, worker_class, qps, configuration, model_load_s=t_pre)


def empty_core(*entries: ProfileEntry, **settings: object) -> SchedulerCore:
    """A core without workers."""
    chosen = entries or (make_entry(FAST, 100.0), make_entry(SLOW, 10.0))
    return make_core(chosen, (), **({"policy": "synergai", "preload": False} | settings))


def make_worker(name: WorkerClass, *, warm: bool = True) -> WorkerJoined:
    return WorkerJoined(new_worker(f"{name}-1", name, [DIGITS], (ONE, TWO), loaded=warm))


def fast_core(*entries: ProfileEntry, **settings: object) -> SchedulerCore:
    """A core with the worker `fast-1`, which by default runs 100 queries per second."""
    core = empty_core(*entries or (make_entry(FAST, 100.0),), **settings)
    core.handle(make_worker(FAST), 0.0)
    return core


def both_core(**settings: object) -> SchedulerCore:
    """A core with the workers `fast-1` and `slow-1`, of 100 and 10 queries per second."""
    core = empty_core(**settings)
    core.handle(make_worker(SLOW), 0.0)
    core.handle(make_worker(FAST), 0.0)
    return core


def make_job(name: str, queries: int, deadline: float = math.inf, **fields: Any) -> JobArrived:
    return new_job(name, DIGITS, queries, deadline=deadline, **fields)
