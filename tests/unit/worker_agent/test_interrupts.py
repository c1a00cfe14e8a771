"""Interrupts of runs in an engine host."""

import os
import threading

from worker_agent.host.loop import InterruptListener
from worker_agent.ipc import INTERRUPT


class RecordingBackend:
    """Records the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.interrupted = threading.Event()

    def interrupt(self) -> None:
        self.calls.append("interrupt")
        self.interrupted.set()

    def resume(self) -> None:
        self.calls.append("resume")


def test_computing_run_is_interrupted_once_and_the_next_is_not() -> None:
    reading, writing = os.pipe()
    backend = RecordingBackend()
    interrupts = InterruptListener(reading)
    interrupts.begin_runs(backend, 7)
    os.write(writing, INTERRUPT.pack(6) + INTERRUPT.pack(7) + INTERRUPT.pack(7))
    assert backend.interrupted.wait(10)
    os.close(writing)
    interrupts.end()
    interrupts.begin_runs(backend, 8)
    interrupts.end()
    assert backend.calls == ["interrupt", "resume"]


def test_batch_is_interrupted_once_all_its_runs_are() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    backend = RecordingBackend()
    interrupts = InterruptListener(reading)
    interrupts.begin_runs(backend, 7, 8)
    interrupts.interrupt(8)
    interrupts.interrupt(8)
    assert backend.calls == []
    interrupts.interrupt(7)
    interrupts.end()
    assert backend.calls == ["interrupt", "resume"]


def test_interrupt_of_another_run_is_ignored() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    backend = RecordingBackend()
    interrupts = InterruptListener(reading)
    interrupts.interrupt(7)
    interrupts.begin_runs(backend, 8)
    interrupts.interrupt(7)
    interrupts.end()
    assert backend.calls == []
