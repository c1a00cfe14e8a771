"""Assignment of CPU cores to engine hosts."""

import os
import threading

import pytest

from synergai.errors import InvalidInput
from worker_agent import cpu_affinity
from worker_agent.cpu_affinity import (
    check_thread_counts,
    pin_new_threads,
    restrict_to,
    thread_cores,
)


def on_cores(monkeypatch: pytest.MonkeyPatch, allowed: set[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed)


def test_every_thread_gets_an_allowed_core(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cores(monkeypatch, {7, 2, 5})
    monkeypatch.setattr(os, "getpid", lambda: 30)
    assert thread_cores(2) == (2, 5)
    assert thread_cores(3) == (2, 5, 7)
    monkeypatch.setattr(os, "getpid", lambda: 32)
    assert thread_cores(2) == (7, 2), "another process begins with another core"


def test_single_thread_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cores(monkeypatch, {0, 1})
    assert thread_cores(1) == ()


def test_new_threads_are_pinned_round_robin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[int, set[int]] = {}
    threads = iter([{1, 2}, {1, 2, 30, 10, 20}])
    monkeypatch.setattr(cpu_affinity, "_threads", lambda: next(threads))
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, mask: given.update({thread: mask}))
    with pin_new_threads((4, 6)):
        pass
    assert given == {10: {4}, 20: {6}, 30: {4}}


def test_new_threads_are_not_pinned_without_cores() -> None:
    stop = threading.Event()
    with pin_new_threads(()):
        thread = threading.Thread(target=stop.wait)
        thread.start()
    assert os.sched_getaffinity(thread.native_id or 0) == os.sched_getaffinity(0)
    stop.set()
    thread.join()


def test_thread_counts_above_the_number_of_cores_are_refused() -> None:
    check_thread_counts((1, 2), (4, 5))
    check_thread_counts((8,), ())
    with pytest.raises(InvalidInput, match="an engine with 3 threads needs 3 cores, not 2"):
        check_thread_counts((1, 3), (4, 5))


def test_all_cores_are_used_if_none_of_the_given_is_online(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = os.sched_getaffinity(0)
    restrict_to((8000, 8001))
    assert os.sched_getaffinity(0) == before
    assert "none of the cores 8000-8001 is online" in caplog.text
