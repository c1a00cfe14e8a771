from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from worker_agent import cores
from worker_agent.cores import own_cores, threads_on

if TYPE_CHECKING:
    import pytest


def on_cores(monkeypatch: pytest.MonkeyPatch, allowed: set[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: allowed)


def test_every_thread_gets_a_core_of_those_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cores(monkeypatch, {7, 2, 5})
    assert own_cores(2) == (2, 5)
    assert own_cores(3) == (2, 5, 7)


def test_one_thread_is_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cores(monkeypatch, {0, 1})
    assert own_cores(1) == ()


def test_more_threads_than_cores_are_left_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cores(monkeypatch, {3})
    assert own_cores(2) == ()


def test_threads_started_in_the_block_get_the_cores_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: dict[int, set[int]] = {}
    threads = iter([{1, 2}, {1, 2, 30, 10, 20}])
    monkeypatch.setattr(cores, "_threads", lambda: next(threads))
    monkeypatch.setattr(os, "sched_setaffinity", lambda thread, mask: given.update({thread: mask}))
    with threads_on((4, 6)):
        pass
    assert given == {10: {4}, 20: {6}, 30: {4}}


def test_threads_stay_where_they_are_without_cores_for_them() -> None:
    stop = threading.Event()
    with threads_on(()):
        thread = threading.Thread(target=stop.wait)
        thread.start()
    assert os.sched_getaffinity(thread.native_id or 0) == os.sched_getaffinity(0)
    stop.set()
    thread.join()
