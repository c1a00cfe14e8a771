"""Early exits on digits: ``python -m benchmarks.early_exits``.

MobileNet reads digits whole, in stages with exits, and with an exit in front of the whole engine.
Each of 800 images that neither heads nor thresholds have seen is sent to the three fleets in turn,
one request at a time. Each fleet has a gateway and one agent with one thread.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import synergai
from benchmarks.staged_jobs import start
from examples.training import digits_mobilenet
from examples.training.digits_mobilenet import ENGINE, EXITS
from synergai.models.cutting.exits import make_exits
from synergai.models.cutting.stages import cut_engine
from worker_agent.cli.check import run_samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.models.cutting.exits import MadeExit

LOSS = 0.01
WARM_UP = 50


class Run(NamedTuple):
    """Answers of a fleet: seconds, whether each is right, and the tensor where its query left."""

    seconds: list[float]
    right: list[bool]
    left_at: list[str]


def main() -> None:
    """Train, serve and measure."""
    (images, _), (held_out, labels) = digits_mobilenet.load()
    with tempfile.TemporaryDirectory(prefix="synergai-") as temporary, ExitStack() as context:
        folder = Path(temporary)
        built = folder / "built"
        digits_mobilenet.build(built)
        engine = cut_engine(built, ENGINE)
        stages, made = make_exits(engine, built, EXITS, run_samples, lambda *_: None, loss=LOSS)
        names = [stage.name for stage in stages]
        ways: dict[str, list[str]] = {
            "whole": [ENGINE],
            "stages with exits": [*names],
            "an exit, then whole": [names[0], ENGINE],
        }
        clients = {}
        for way, engines in ways.items():
            models = folder / "models" / way
            for name in engines:
                shutil.copytree(built / name, models / name)
            fleet = context.enter_context(start(folder / way, {way: models}))
            clients[way] = context.enter_context(synergai.SyncClient(fleet.address))
            for image in images[:WARM_UP]:
                clients[way].infer(ENGINE, {"image": image[np.newaxis]})
        runs = measure(clients, held_out, labels)
    show(runs, made)


def measure(
    clients: Mapping[str, synergai.SyncClient],
    images: np.ndarray,
    labels: np.ndarray,
) -> dict[str, Run]:
    """Send each image to each fleet in turn."""
    runs = {way: Run([], [], []) for way in clients}
    for image, label in zip(images, labels, strict=True):
        for way, client in clients.items():
            begin = time.perf_counter()
            result = client.infer(ENGINE, {"image": image[np.newaxis]})
            runs[way].seconds.append(time.perf_counter() - begin)
            runs[way].right.append(int(result["probabilities"].argmax()) == label)
            runs[way].left_at.append(str(result.parameters.get("synergai_exit", "")))
    return runs


def show(runs: Mapping[str, Run], made: list[MadeExit]) -> None:
    """Print the times, the accuracies and the rates of the exits."""
    whole = runs["whole"]
    for way, run in runs.items():
        mean_s, right = np.mean(run.seconds), np.mean(run.right)
        lost = 100 * (np.mean(whole.right) - right)
        print(
            f"{way:20} mean {1e3 * mean_s:5.2f} ms, {mean_s / np.mean(whole.seconds):6.1%} of the "
            f"whole engine's; {right:.2%} right, {lost:+.2f} points lost"
        )
        for each in made:
            here = run.left_at.count(each.cut.tensor)
            if here:
                print(
                    f"  {here} of {len(run.left_at)} queries left at {each.cut.tensor}; the "
                    f"calibration expected {each.reach * each.exit.rate:.1%}"
                )


if __name__ == "__main__":
    main()
