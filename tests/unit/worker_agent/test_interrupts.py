from __future__ import annotations

import os
import threading

from worker_agent.host.interrupts import InterruptListener
from worker_agent.ipc.interrupts import encode


class Computing:
    """A backend that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.interrupted = threading.Event()

    def interrupt(self) -> None:
        self.told.append("interrupt")
        self.interrupted.set()

    def resume(self) -> None:
        self.told.append("resume")


def test_run_that_computes_is_interrupted_once_and_the_next_is_not() -> None:
    reading, writing = os.pipe()
    backend = Computing()
    interrupts = InterruptListener(reading, backend)
    interrupts.begin(7)
    os.write(writing, encode(6) + encode(7) + encode(7))
    assert backend.interrupted.wait(10)
    os.close(writing)
    interrupts.end()
    interrupts.begin(8)
    interrupts.end()
    assert backend.told == ["interrupt", "resume"]


def test_batch_is_interrupted_once_nobody_wants_any_of_it() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    backend = Computing()
    interrupts = InterruptListener(reading, backend)
    interrupts.begin(7, 8)
    interrupts.interrupt(8)
    interrupts.interrupt(8)
    assert backend.told == []
    interrupts.interrupt(7)
    interrupts.end()
    assert backend.told == ["interrupt", "resume"]


def test_word_of_a_run_that_does_not_compute_is_of_no_consequence() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    backend = Computing()
    interrupts = InterruptListener(reading, backend)
    interrupts.interrupt(7)
    interrupts.begin(8)
    interrupts.interrupt(7)
    interrupts.end()
    assert backend.told == []
