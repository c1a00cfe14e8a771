"""Measure the chains of three networks again: ``python -m benchmarks.measured_chains``.

The profiler's measurement of heads and tails gives the time of any stage on one thread of this
machine, and the cuts of the engine the sizes of tensors and weights. It takes some minutes.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from profiler.cutting.chain import make_chain, planned_cuts, read_model
from profiler.cutting.stages import cut_engine
from profiler.dictionary.stages import class_times
from profiler.measuring.stages import StageSetting, measure_stages
from profiler.simulator.pipelines.measured_chains import FILE, Place
from profiler.zoo.recipes import build
from synergai.domain import Configuration, WorkerClass
from synergai.profiles.dictionary import ConfigurationDictionary

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINES: Final = ("onnx_mobilenet_op11", "onnx_resnet50_op11", "onnx_ssd_op11")
HERE: Final = WorkerClass("here")


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
    seconds = class_times(
        dictionary,
        engine.definition.name,
        HERE,
        [cut.work for cut in engine.cuts],
        [cut.position for cut in cuts],
    ).seconds
    tensors = ("inputs", *(cut.tensor for cut in cuts), "outputs")
    for number, tensor in enumerate(tensors):
        yield Place(
            tensor=tensor,
            size_bytes=chain.sizes[number],
            weights_before=chain.weights_before[number],
            weights_after=chain.weights_after[number],
            head_ms=1000 * seconds[0][number] if number else 0.0,
            tail_ms=1000 * seconds[number][-1] if number < chain.end else 0.0,
        )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="synergai-") as folder:
        rows = [
            (engine, *place[:4], f"{place.head_ms:.3f}", f"{place.tail_ms:.3f}")
            for engine in ENGINES
            for place in measure(engine, Path(folder))
        ]
    with FILE.open("w") as file:
        csv.writer(file, lineterminator="\n").writerows([("engine", *Place._fields), *rows])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # for --help
    main()
