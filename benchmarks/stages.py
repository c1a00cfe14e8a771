"""Predicted times of stages against measured ones: ``python -m benchmarks.stages [ENGINE]...``.

The profiler's measurement of heads and tails gives the prediction. Then the engine is cut at other
seams into three stages, which run in turns with the whole engine.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.cutting.stages import cut_engine
from profiler.dictionary.stages import StageTimes
from profiler.measuring.stages import StageSetting, measure_split, measure_stages, measured_cuts
from profiler.zoo.recipes import build
from synergai.domain import Configuration, WorkerClass
from synergai.profiles.dictionary import ConfigurationDictionary

if TYPE_CHECKING:
    from profiler.cutting.cuts import Cut
    from profiler.cutting.stages import CutEngine

ENGINES = ("onnx_mobilenet_op11", "onnx_resnet50_op11")
SHARES = ((0.25, 0.6), (0.4, 0.8))
"""Estimated shares of the work at which the engine is cut."""


def main() -> None:
    """Measure the engines that the command line names."""
    with tempfile.TemporaryDirectory(prefix="synergai-") as folder:
        for name in sys.argv[1:] or ENGINES:
            build(name, Path(folder), lambda _: None)
            compare(cut_engine(Path(folder), name), Path(folder))


def compare(engine: CutEngine, models: Path) -> None:
    """Print predicted and measured times of stages."""
    setting = StageSetting(
        models=models, worker_class=WorkerClass("here"), configuration=Configuration(1)
    )
    dictionary = ConfigurationDictionary()
    for entries in measure_stages(engine, setting):
        for entry in entries:
            dictionary.put(entry)
    name = engine.definition.name
    works = [cut.work for cut in engine.cuts]
    times = StageTimes(dictionary, name, works, setting.worker_class, setting.configuration)
    whole_s = times.heads[-1]
    measured = measured_cuts(engine.cuts)
    print(f"{name}: {whole_s * 1e3:.2f} ms, {len(measured)} of {len(works)} cuts measured")
    print("stage                            predicted  measured  error")
    others = [cut for cut in engine.cuts if cut.seam and cut not in measured]
    for shares in SHARES:
        chosen = [nearest(others, share) for share in shares]
        whole, *stages = measure_split(engine, [cut.tensor for cut in chosen], setting)
        places = [0, *(cut.position for cut in chosen), len(works) + 1]
        for place, entry in enumerate(stages):
            predicted_s = times.of(places[place], places[place + 1]).seconds
            measured_s = whole.qps / entry.qps * whole_s
            error = predicted_s / measured_s - 1
            print(
                f"{entry.engine:32} {predicted_s * 1e3:6.2f} ms {measured_s * 1e3:6.2f} ms "
                f"{error:+6.1%}{' disturbed' if entry.label == 'disturbed' else ''}",
                flush=True,
            )


def nearest(cuts: list[Cut], share: float) -> Cut:
    """Return the cut with about this share of the work before it."""
    return min(cuts, key=lambda cut: abs(cut.work - share))


if __name__ == "__main__":
    main()
