"""Early exits: most digits are read by the first stage of a network larger than its task."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

import synergai
from demo.local_fleet import LocalFleet
from examples.training import digits_mobilenet
from examples.training.digits_mobilenet import ENGINE, EXITS
from profiler.cutting.stages import cut_engine, make_exits
from profiler.engines.check import run_samples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from profiler.cutting.stages import MadeExit

WHOLE: Final = "whole"
STAGES: Final = "in stages with exits"
THEN_WHOLE: Final = "an exit, then whole"
_LOSS: Final = 0.01
_WARM_UP: Final = 50
_IN_TURN: Final = 20


class Run(NamedTuple):
    """Answers of a fleet: seconds, whether each is right, and the tensor where its query left."""

    seconds: list[float]
    right: list[bool]
    left_at: list[str]

    def mean_s(self) -> float:
        """Return the mean time of a request."""
        return float(np.mean(self.seconds))

    def accuracy(self) -> float:
        """Return the share of right answers."""
        return float(np.mean(self.right))


def make(models: Path) -> tuple[dict[str, list[str]], list[MadeExit]]:
    """Train a network and its exits in a model directory; return the engines of each way."""
    digits_mobilenet.build(models)
    engine = cut_engine(models, ENGINE)
    stages, made = make_exits(engine, models, EXITS, run_samples, lambda *_: None, loss=_LOSS)
    names: list[str] = [stage.name for stage in stages]
    return {WHOLE: [ENGINE], STAGES: names, THEN_WHOLE: [names[0], ENGINE]}, made


def compare(
    models: Path, directory: Path, ways: Mapping[str, Sequence[str]], images: int
) -> dict[str, Run]:
    """Send held-out images to a fleet of each way, 20 in turn, one request at a time.

    Each fleet has a gateway and one agent with one thread.
    """
    (samples, _), (held_out, labels) = digits_mobilenet.load()
    runs = {way: Run([], [], []) for way in ways}
    with ExitStack() as stack:
        clients = {}
        for number, (way, engines) in enumerate(ways.items()):
            folder = directory / f"exits-{number}"
            for engine in engines:
                shutil.copytree(models / engine, folder / "models" / engine)
            fleet = stack.enter_context(LocalFleet(folder / "fleet"))
            fleet.start_gateway()
            fleet.start_agent("worker", models=folder / "models", options=["--threads", "1"])
            fleet.wait_for_workers(1)
            clients[way] = stack.enter_context(synergai.SyncClient(fleet.address))
            for image in samples[:_WARM_UP]:
                clients[way].infer(ENGINE, {"image": image[np.newaxis]})
        for first in range(0, images, _IN_TURN):
            for way, client in clients.items():
                for number in range(first, min(first + _IN_TURN, images)):
                    begin = time.perf_counter()
                    result = client.infer(ENGINE, {"image": held_out[number][np.newaxis]})
                    runs[way].seconds.append(time.perf_counter() - begin)
                    answer = int(result["probabilities"].argmax())
                    runs[way].right.append(answer == labels[number])
                    runs[way].left_at.append(str(result.parameters.get("synergai_exit", "")))
    return runs
