"""Measured chains of three networks: ``python -m benchmarks.measured_chains`` measures them again.

The profiler's measurement of heads and tails gives the time of any stage on one thread of this
machine, and the cuts of the engine the sizes of tensors.
"""

from __future__ import annotations

import csv
import tempfile
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from profiler.stages import StageSetting, measure_stages
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.models.cutting.chain import make_chain, planned_cuts, read_model
from synergai.models.cutting.stages import cut_engine
from synergai.profiles.dictionary import ConfigurationDictionary
from synergai.routes.profiled import class_times
from synergai.zoo.build import build

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FILE: Final = Path(__file__).with_suffix(".csv")
ENGINES: Final = ("onnx_mobilenet_op11", "onnx_resnet50_op11", "onnx_ssd_op11")
HERE: Final = WorkerClass("here")


class Place(NamedTuple):
    """A place of a chain: its inputs, a cut, or its outputs.

    Attributes:
        size_bytes: of the tensors of one query.
        head_ms: time of the part before it.
        tail_ms: time of the part behind it.
    """

    tensor: str
    size_bytes: int
    head_ms: float
    tail_ms: float


def read_chains() -> dict[EngineName, list[Place]]:
    """Return the places of each engine."""
    with FILE.open() as file:
        rows = [
            (EngineName(engine), Place(tensor, int(size), float(head), float(tail)))
            for engine, tensor, size, head, tail in list(csv.reader(file))[1:]
        ]
    return {
        engine: [place for _, place in of_engine]
        for engine, of_engine in groupby(rows, key=lambda row: row[0])
    }


def stage_seconds(places: Sequence[Place]) -> tuple[tuple[float, ...], ...]:
    """Return the seconds of the stage between two places, as ``seconds[first][last]``."""
    whole_ms = places[-1].head_ms
    # The head up to its end, less what is before its begin, and the cost of the cut there.
    return tuple(
        tuple(max(0.0, last.head_ms + first.tail_ms - whole_ms) / 1000 for last in places)
        for first in places
    )


def measure(name: str, models: Path) -> Iterator[Place]:
    """Measure an engine."""
    build(name, models, lambda _: None)
    engine = cut_engine(models, name)
    setting = StageSetting(models=models, worker_class=HERE, configuration=Configuration(1))
    dictionary = ConfigurationDictionary()
    for entries in measure_stages(engine, setting):
        for entry in entries:
            dictionary.put(entry)
    cuts = planned_cuts(engine.cuts)
    chain = make_chain(engine.definition, read_model(engine.definition), cuts)
    times = class_times(
        dictionary,
        engine.definition.name,
        HERE,
        [cut.work for cut in engine.cuts],
        [cut.position for cut in cuts],
    )
    tensors = ["inputs", *(cut.tensor for cut in cuts), "outputs"]
    for place, (tensor, size) in enumerate(zip(tensors, chain.sizes, strict=True)):
        head_ms = 1000 * times.seconds[0][place] if place else 0.0
        tail_ms = 1000 * times.seconds[place][-1] if place < chain.end else 0.0
        yield Place(tensor, size, head_ms, tail_ms)


def main() -> None:
    with FILE.open("w") as file, tempfile.TemporaryDirectory(prefix="synergai-") as folder:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("engine", *Place._fields))
        for engine in ENGINES:
            for tensor, size, head_ms, tail_ms in measure(engine, Path(folder)):
                writer.writerow((engine, tensor, size, f"{head_ms:.3f}", f"{tail_ms:.3f}"))


if __name__ == "__main__":
    main()
