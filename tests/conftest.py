import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TypeAlias

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

from demo.local_fleet import reserved_port
from tests.clocks import FakeClock

Detections: TypeAlias = Mapping[str, NDArray[np.float32]]

# Hypothesis fails an example that takes longer than 200 ms by default: on a busy machine, any.
settings.register_profile("synergai", deadline=None, max_examples=50)
settings.load_profile("synergai")
# Without the compiled files of the code, each process that a test starts would compile it anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# In the background of a script SIGINT is ignored, and so it would be in every process that a test
# starts and then interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage, and never look for it in what that allocates.

    Otherwise a test that collects garbage would spend a fifth of a second on all other tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture
def unreachable() -> Iterator[str]:
    """An address on which nothing listens during the test."""
    with reserved_port() as port:
        yield f"127.0.0.1:{port}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def assert_same_detections() -> Callable[[Detections, Detections], None]:
    """Asserts that two detectors found the same objects, up to rounding."""
    return _assert_same_detections


def _assert_same_detections(found: Detections, expected: Detections) -> None:
    """Objects whose scores differ by less than rounding may be in any order."""
    tolerance = 1e-4
    assert (found["num_detections"] == expected["num_detections"]).all()
    scores, wanted = found["detection_scores"], expected["detection_scores"]
    assert np.abs(scores - wanted).max() <= tolerance
    for image, count in enumerate(expected["num_detections"].astype(int)):
        for place in range(count):
            # Of those that are as good as the last one, any may be it.
            if wanted[image, place] - wanted[image, count - 1] <= tolerance:
                break
            close = np.abs(scores[image] - wanted[image, place]) <= tolerance
            close &= (
                found["detection_classes"][image] == expected["detection_classes"][image, place]
            )
            boxes = np.abs(
                found["detection_boxes"][image] - expected["detection_boxes"][image, place]
            )
            assert (close & (boxes.max(axis=1) <= tolerance)).any(), (image, place)
