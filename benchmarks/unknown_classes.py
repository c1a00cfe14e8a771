"""Predict the times of a class from other classes: ``python -m benchmarks.unknown_classes``.

Each class of the reconstructed profile is left out in turn, with all of its times, or all but those
of one engine. Only its number of cores is known. The error that the product would show comes from
leaving out the other classes in the same way.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.simulated_fleets import reconstructed_profile
from profiler.dictionary.predicted import KnownTime, PredictedTimes, Work, known_times
from synergai.core.routes.fleet import FleetFile, FleetWorker
from synergai.domain import WorkerClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.domain import EngineName

CORES: Final = {WorkerClass("x86"): 16, WorkerClass("agx"): 8, WorkerClass("nx"): 6}
"""Of the classes: of the VM's and the boards' data sheets."""
_NETWORKS: Final = {
    "resnet50": Work(4.1e9, 102e6),
    "mobilenet": Work(0.57e9, 17e6),
    "ssd": Work(1.2e9, 27e6),
}
"""Published products of the networks, and the sizes of their weights as 32-bit floats."""


class LeftOut(NamedTuple):
    """A time of a class that was left out: its relative error, and the one that is shown."""

    engine: EngineName
    error: float
    shown: float | None


def shipped_times() -> list[KnownTime]:
    """Return the times of 12 engines on 3 classes, in their fastest configurations."""
    fleet = FleetFile(
        workers=tuple(FleetWorker(id=name, worker_class=name, cores=CORES[name]) for name in CORES)
    )
    return known_times(reconstructed_profile(), fleet)


def shipped_works() -> dict[EngineName, Work]:
    """Return the work of the engines, with quarters of the bytes for 8-bit weights."""
    names = {each.engine for each in shipped_times()}
    works = {name: _NETWORKS[name.split("_")[1]] for name in names}
    return {
        name: work._replace(weight_bytes=work.weight_bytes / (4 if name.endswith("_q") else 1))
        for name, work in works.items()
    }


def without_class(
    known: Sequence[KnownTime],
    works: Mapping[EngineName, Work],
    left_out: WorkerClass,
    kept: EngineName | None = None,
) -> list[LeftOut]:
    """Predict the times of a class without measurements, or with those of one engine."""
    hidden = [each for each in known if each.worker_class == left_out and each.engine != kept]
    predicted = PredictedTimes([each for each in known if each not in hidden], works)
    return [
        LeftOut(
            engine,
            abs(predicted.seconds(engine, left_out, CORES[left_out]) / seconds - 1),
            predicted.error(engine, left_out),
        )
        for engine, _, _, seconds in hidden
    ]


def _without_network(
    known: Sequence[KnownTime], works: Mapping[EngineName, Work]
) -> Iterable[float]:
    """Yield the errors for engines of which no other of the same network is known."""
    for network in _NETWORKS:
        hidden = [each for each in known if network in each.engine]
        predicted = PredictedTimes([each for each in known if each not in hidden], works)
        for engine, of, cores, seconds in hidden:
            yield abs(predicted.seconds(engine, of, cores) / seconds - 1)


def main() -> None:
    known, works = shipped_times(), shipped_works()
    engines = sorted(works)
    print(f"{'left out':12}{'known of it':22}{'times':>6}{'error':>8}{'largest':>9}{'shown':>8}")
    for kept_of, kept in (("cores", [None]), ("cores and one engine", engines)):
        every: list[LeftOut] = []
        for of in CORES:
            rows = [row for name in kept for row in without_class(known, works, of, name)]
            _print(of, kept_of, rows)
            every += rows
        _print("each class", kept_of, every)
    for what, given in (("works", works), ("nothing", {})):
        errors = list(_without_network(known, given))
        _print("networks", what, [LeftOut(engines[0], error, None) for error in errors])


def _print(left_out: str, known: str, rows: Sequence[LeftOut]) -> None:
    errors = [row.error for row in rows]
    shown = [row.shown for row in rows if row.shown is not None]
    print(
        f"{left_out:12}{known:22}{len(rows):6}{median(errors):8.0%}{max(errors):9.0%}"
        f"{format(median(shown), '8.0%') if shown else ''}"
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # for --help
    main()
