"""Effect of power modes on placement and estimates."""

import math

import pytest

from synergai.core.scheduling.events import Assignment, ModeChanged
from synergai.domain import Configuration, EngineName, WorkerClass, WorkerId
from tests.cores import dispatched, end, make_core, new_entry, new_job, new_worker

ENGINE, CLASS, BOARD = EngineName("digits"), WorkerClass("board"), WorkerId("board-1")
FRUGAL, FAST = Configuration(1, "10W"), Configuration(1, "30W")
WATTS = {FRUGAL: (10.0, 5.0), FAST: (40.0, 30.0)}
"""QPS and watts by configuration: a query takes 0.5 J in frugal mode, 0.75 J in fast mode."""


class Board:
    """A core with one board, all of its sessions resident, and a clock."""

    def __init__(self, power_mode: str = "") -> None:
        entries = [
            new_entry(ENGINE, CLASS, qps, each, watts=watts) for each, (qps, watts) in WATTS.items()
        ]
        worker = new_worker(BOARD, CLASS, [ENGINE], (FRUGAL, FAST), power_mode=power_mode)
        self.core = make_core(
            entries, [worker], policy="synergai", objective="energy", mode_switch_s=5.0
        )
        self.now = 0.0
        self._jobs = 0

    def run(self, queries: int, qos: float) -> Assignment:
        """Run a job to its end and return its assignment."""
        self._jobs += 1
        job = new_job(f"job-{self._jobs}", ENGINE, queries, self.now, deadline=self.now + qos)
        [assignment] = dispatched(self.core.handle(job, self.now))
        self.now += assignment.estimate_s
        end(self.core, assignment, self.now)
        return assignment


def test_tight_deadline_switches_to_the_fast_mode() -> None:
    board = Board("10W")
    assert board.run(10, qos=60).configuration == FRUGAL
    tight = board.run(80, qos=7.5)
    assert (tight.configuration, tight.setup_s) == (FAST, 5.0)
    assert board.run(10, qos=60).configuration == FRUGAL


def test_mode_at_joining_costs_no_switch() -> None:
    assert Board("30W").run(80, qos=7.5).setup_s == 0.0
    assert Board().run(80, qos=7.5).setup_s == 0.0  # unknown: no switch is assumed


def test_observed_switch_times_replace_the_default() -> None:
    board = Board("10W")
    board.core.handle(ModeChanged(BOARD, "30W", 1.0), board.now)
    board.core.handle(ModeChanged(BOARD, "10W", 2.0), board.now)
    assert board.run(80, qos=6).setup_s == pytest.approx(1.5)


def test_external_switch_updates_the_mode_but_not_the_switch_time() -> None:
    board = Board("10W")
    board.core.handle(ModeChanged(BOARD, "30W"), board.now)
    assert board.run(80, qos=7.5).setup_s == 0.0
    assert board.run(10, qos=math.inf).setup_s == 5.0
