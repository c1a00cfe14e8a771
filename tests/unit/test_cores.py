from __future__ import annotations

import os
from typing import TYPE_CHECKING

from worker_agent.cores import own_cores

if TYPE_CHECKING:
    import pytest


def on_cores(monkeypatch: pytest.MonkeyPatch, cores: set[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cores)


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
