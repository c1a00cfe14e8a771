import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from synergai.client import sync


def test_threads_that_start_at_once_share_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowToStart:
        def __init__(self) -> None:
            with suppress(threading.BrokenBarrierError):
                others.wait(0.05)  # for other threads that start one as well

    others = threading.Barrier(4)
    monkeypatch.setattr(sync, "LoopThread", SlowToStart)
    sync._shared_loop.cache_clear()
    try:
        with ThreadPoolExecutor(4) as pool:
            loops = list(pool.map(lambda _: sync.shared_loop(), range(4)))
    finally:
        sync._shared_loop.cache_clear()
    assert len(set(map(id, loops))) == 1
