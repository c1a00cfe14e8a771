"""Run a model over images of a client while gateway, agents and engine hosts are killed.

    python tests/acceptance/own_data.py --images 20000 --kills 40 --seed 1    # on a quiet machine

The images are uploaded, with interruptions, and a job runs over them on three workers. At the end,
every image must have exactly one result, equal to that of a direct request.
"""

import argparse
import random
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import synergai
from synergai.data.results import JobResult
from tests.acceptance.fleets import HOST, KilledFleet
from tests.acceptance.scripts import verdict
from tests.tiny_images import COLOURS, picture, save_image_engines

ENGINE: Final = "colours"
INPUT: Final = "input:0"
AGENTS: Final = ("left", "middle", "right")
VICTIMS: Final = ("gateway", *AGENTS, HOST)
PAUSE_S: Final = 1.5
"""Mean time between a restart and the next kill."""
WIDTH: Final = 900
"""Images take long to decode, so that most kills meet a running job."""
DIED_TWICE: Final = "the engine failed at this input"
"""What an image's result says if the host was killed twice while it computed it."""
PATIENCE_S: Final = 300.0


def find_errors(
    results: Sequence[tuple[int, JobResult]],
    count: int,
    answers: Sequence[Mapping[str, NDArray[Any]]],
) -> tuple[list[str], int]:
    """Return what is wrong with the results, and how many images lost their host twice."""
    errors, died = [], 0
    if sorted(index for index, _ in results) != list(range(count)):
        errors.append(f"{len(results):,} results of {count:,} images, or some of them twice")
    for index, result in results:
        if result.error.startswith(DIED_TWICE):
            died += 1
        elif result.error:
            errors.append(f"image {index} failed: {result.error}")
        else:
            for name, answer in answers[index % len(answers)].items():
                if not np.array_equal(result.outputs[name], answer):
                    errors.append(f"image {index} has another result than the direct request")
        if result.name != f"image {index}":
            errors.append(f"image {index} is called {result.name!r}")
    return errors, died


def run(images: int, kills: int, seed: int, directory: Path) -> list[str]:
    """Run the test and print its figures; return the errors."""
    rng, killed, ended = random.Random(seed), 0, threading.Event()
    models = save_image_engines(directory / "models")
    fleet = KilledFleet(directory / "run", dict.fromkeys(AGENTS, models))
    pictures = [
        picture(colour, suffix, height, WIDTH)
        for colour in COLOURS
        for suffix in (".jpg", ".png")
        for height in (WIDTH - 1, WIDTH)
    ]

    def kill_all() -> None:
        nonlocal killed
        while killed < kills and not ended.wait(rng.expovariate(1 / PAUSE_S)):
            killed += fleet.kill(rng.choice(VICTIMS), rng)

    with fleet.local:
        fleet.start()
        with synergai.SyncClient(fleet.local.address, patience=PATIENCE_S) as client:
            answers = [client.infer(ENGINE, {INPUT: [each]}).outputs for each in pictures]
            killer = threading.Thread(target=kill_all)
            killer.start()
            try:
                job = client.submit(
                    ENGINE,
                    inputs=(
                        synergai.NamedInput(f"image {number}", pictures[number % len(pictures)])
                        for number in range(images)
                    ),
                )
                results = list(job.results())
                status = job.wait()
            finally:
                ended.set()
                killer.join()
    errors, died = find_errors(results, images, answers)
    if status.state is not synergai.JobState.SUCCEEDED:
        errors.append(f"the job ended as {status.state.name}: {status.reason}")
    print(
        f"{images:,} images, {killed} kills: {len(results):,} results, {died} images whose host "
        "was killed twice"
    )
    return errors


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="keep state and logs here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        errors = run(options.images, options.kills, options.seed, directory)
    return verdict(errors)


if __name__ == "__main__":
    sys.exit(main())
