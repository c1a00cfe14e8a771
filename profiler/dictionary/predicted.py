"""Predicted times of engines on worker classes that have no profile of them.

Without any profile, a query takes the time of its work at an assumed rate. Known times correct
this: the logarithm of a time is linear in those of products, bytes and cores, plus a part of the
engine and a part of the class. The coefficients have Gaussian priors, so that any number of times
will do (Bayesian linear regression: Rasmussen and Williams, Gaussian Processes for Machine
Learning, section 2.1).
"""

from __future__ import annotations

import math
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from synergai.names import stage_positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from profiler.cutting.process import ModelCuts
    from synergai.core.routes.fleet import FleetFile
    from synergai.core.routes.problem import Chain
    from synergai.domain import EngineName, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry

RATE: Final = 3e10
"""Products per second of a core that are assumed."""
SPEED_UP: Final = 0.65
"""Power of the number of cores by which a query is faster on them than on one, as assumed."""
TYPICAL_CORES: Final = 4
"""Of a class of which the number is not known."""
_LEVEL, _IS_UNKNOWN, _PRODUCTS, _BYTES, _CORES = _COMMON = 10.0, 1.0, 0.5, 0.5, 0.5
_ENGINE, _UNKNOWN_ENGINE, _CLASS, _NOISE = 0.6, 1.2, 0.8, 0.45
"""Standard deviations of coefficients, and of the parts of an engine whose work is known, or is
not, of a class, and of an engine on a class. They are as wide as machines and models differ, and
fitted to none."""
_MOST_FITS: Final = 64
"""Fits for the error of a prediction."""


class Work(NamedTuple):
    """What a query of an engine takes: products, and bytes of weights that it reads."""

    products: float
    weight_bytes: float


_TYPICAL: Final = Work(1e9, 5e7)


def works_of(
    chain: Chain, found: ModelCuts, stages: Iterable[EngineName] = ()
) -> dict[EngineName, Work]:
    """Return the work of an engine and of its stages; nothing if its model does not tell.

    Args:
        chain: the engine with all its cuts.
    """
    shares = [0.0, *(cut.work for cut in found.cuts), 1.0]
    ends = {chain.engine: (0, chain.end)} | {stage: stage_positions(stage) for stage in stages}
    return {
        name: Work(
            max(found.products * (shares[last] - shares[first]), 1.0),
            max(chain.weights(first, last), 1),
        )
        for name, (first, last) in ends.items()
        if found.products and last <= chain.end
    }


class KnownTime(NamedTuple):
    """Time of a query of an engine on some cores of a worker class."""

    engine: EngineName
    worker_class: WorkerClass
    cores: float
    seconds: float


def known_times(entries: Iterable[ProfileEntry], fleet: FleetFile) -> list[KnownTime]:
    """Return the times of the fastest configurations, and those that agents have reported."""
    cores = {each.worker_class: each.cores for each in fleet.workers}
    profiled = (
        KnownTime(
            entry.engine,
            entry.worker_class,
            entry.configuration.threads
            or entry.cpus
            or cores.get(entry.worker_class)
            or TYPICAL_CORES,
            1 / entry.planned_qps,
        )
        for entry in entries
    )
    reported = (
        KnownTime(engine, each.worker_class, 1, seconds)
        for each in fleet.workers
        for engine, seconds in each.query_s.items()
    )
    return [*_fastest(profiled), *_fastest(reported)]


def _fastest(times: Iterable[KnownTime]) -> Iterable[KnownTime]:
    """Return the shortest time of each engine on each class."""
    found: dict[tuple[EngineName, WorkerClass], KnownTime] = {}
    for each in times:
        known = found.setdefault((each.engine, each.worker_class), each)
        if each.seconds < known.seconds:
            found[each.engine, each.worker_class] = each
    return found.values()


class PredictedTimes:
    """Predicts times from known ones.

    Args:
        works: of the engines of which it is known.
    """

    def __init__(self, known: Sequence[KnownTime], works: Mapping[EngineName, Work]) -> None:
        self._known = known
        self._works = works
        names = dict.fromkeys(each.engine for each in known)
        self._engines = {name: number for number, name in enumerate(names)}
        classes = dict.fromkeys(each.worker_class for each in known)
        self._classes = {name: number for number, name in enumerate(classes)}
        width = len(_COMMON) + len(self._engines) + len(self._classes)
        features = np.reshape([self._features(*each[:3]) for each in known], (len(known), width))
        logs = np.array(
            [math.log(each.seconds) - self._expected(each[0], each[2]) for each in known]
        )
        # The most probable coefficients, in standard deviations.
        self._coefficients = np.linalg.solve(
            features.T @ features + _NOISE**2 * np.eye(width), features.T @ logs
        )

    def knows(self, engine: EngineName) -> bool:
        """Return whether times of an engine follow from known ones: its own, or by its work."""
        return engine in self._engines or (
            engine in self._works and not self._works.keys().isdisjoint(self._engines)
        )

    def seconds(self, engine: EngineName, worker_class: WorkerClass, cores: float = 0) -> float:
        """Return the time of a query on some cores of a class; 0 if their number is not known."""
        cores = cores or TYPICAL_CORES
        correction = self._features(engine, worker_class, cores) @ self._coefficients
        return math.exp(self._expected(engine, cores) + float(correction))

    def error(self, engine: EngineName, worker_class: WorkerClass) -> float | None:
        """Return the relative error at the median of predictions that know as little.

        Each other class is left out, but for the engines that are known of this one. If the engine
        is new, the others are left out, one by one: on this class, or if none is known of it, on
        the other classes. None if there is nothing to leave out.
        """
        cores = {
            each.engine: each.cores for each in self._known if each.worker_class == worker_class
        }
        is_new = engine not in self._engines
        hidden: defaultdict[tuple[str, str], list[KnownTime]] = defaultdict(list)
        for each in self._known:
            if is_new and each.worker_class == worker_class:
                hidden["", each.engine].append(each)
            elif each.engine not in cores and not (is_new and cores):
                hidden[each.worker_class, each.engine if is_new else ""].append(each)
        errors: list[float] = []
        for without, name in sorted(hidden)[:: 1 + len(hidden) // _MOST_FITS]:
            left = [
                each
                for each in self._known
                if each.engine != name
                and (each.worker_class != without or each.cores <= cores.get(each.engine, 0))
            ]
            fitted = PredictedTimes(left, self._works)
            errors += [
                abs(fitted.seconds(*each[:3]) / each.seconds - 1)
                for each in hidden[without, name]
                if fitted.knows(each.engine)
            ]
        return median(errors) if errors else None

    def _expected(self, engine: EngineName, cores: float) -> float:
        """Return the logarithm of a time as it is assumed."""
        products = self._works.get(engine, _TYPICAL).products
        return math.log(products / RATE) - SPEED_UP * math.log(cores)

    def _features(
        self, engine: EngineName, worker_class: WorkerClass, cores: float
    ) -> NDArray[np.float64]:
        """Return by how much a standard deviation of each coefficient changes the logarithm."""
        is_known = engine in self._works
        work = self._works.get(engine, _TYPICAL)
        common = (
            _LEVEL,
            0.0 if is_known else _IS_UNKNOWN,
            _PRODUCTS * math.log(work.products / _TYPICAL.products),
            _BYTES * math.log(work.weight_bytes / _TYPICAL.weight_bytes),
            _CORES * math.log(cores / TYPICAL_CORES),
        )
        engines, classes = np.zeros(len(self._engines)), np.zeros(len(self._classes))
        if engine in self._engines:
            engines[self._engines[engine]] = _ENGINE if is_known else _UNKNOWN_ENGINE
        if worker_class in self._classes:
            classes[self._classes[worker_class]] = _CLASS
        return np.concatenate([common, engines, classes])
