"""Fleets whose true figures are known, to measure strategies of the search on.

One is the reconstructed profile of the thesis, with modelled power. The others are synthetic:

    seconds per query = compute / (clock * speed-up) + memory / bandwidth + fixed

with four families of engines, factors of engines and devices, power modes whose budget limits the
clock, and rows that collapse when all cores compute. Neither was measured on hardware.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import numpy as np

from profiler.dictionary.files import read_csv
from profiler.measuring.search.space import (
    SHORT_ERROR,
    Knobs,
    Point,
    SearchSpace,
    Trial,
    TrialResult,
)
from profiler.measuring.search.state import SearchPlan
from synergai.domain import Configuration, EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from synergai.profiles.dictionary import ConfigurationDictionary

PLAN: Final = SearchPlan()
_WATTS_ERROR: Final = 0.03
_FULL_ERROR: Final = 0.02

X86: Final = (Knobs(16, 16, 2100.0, 2666.0),)
AGX: Final = (
    Knobs(8, 8, 1200.0, 1600.0),
    Knobs(6, 6, 1450.0, 1600.0),
    Knobs(4, 4, 1780.0, 1600.0),
    Knobs(2, 2, 2100.0, 1600.0),
    Knobs(4, 4, 2188.8, 1331.2),
    Knobs(8, 8, 2265.6, 2133.0),
)
"""Modes of the thesis by number, from 1: ``docs/guide/power.md`` has their names."""
AGX_BUDGETS_W: Final = (30.0, 30.0, 30.0, 30.0, 15.0, math.inf)
NX: Final = (
    Knobs(4, 4, 1190.4, 1600.0),
    Knobs(4, 4, 1420.8, 1600.0),
    Knobs(4, 4, 1420.8, 1866.0),
    Knobs(6, 6, 1420.8, 1600.0),
    Knobs(6, 6, 1420.8, 1866.0),
    Knobs(2, 2, 1497.6, 1600.0),
    Knobs(2, 2, 1907.2, 1600.0),
    Knobs(2, 2, 1907.2, 1866.0),
    Knobs(4, 4, 1907.2, 1600.0),
)
NX_BUDGETS_W: Final = (10.0, 15.0, 20.0, 15.0, 20.0, 10.0, 15.0, 20.0, 10.0)


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """Points with their true figures.

    Attributes:
        name: for the report.
        space: N points.
        qps: true queries per second; shape (N,).
        watts: true power; shape (N,).
        setup_s: T_pre; shape (N,).
        noise: standard error of each measurement that the measurement does not state.
        metered: whether power can be measured.
    """

    name: str
    space: SearchSpace
    qps: NDArray[np.float64]
    watts: NDArray[np.float64]
    setup_s: NDArray[np.float64]
    noise: float = 0.0
    metered: bool = True

    def exhaustive_s(self, points: Sequence[int] | None = None) -> float:
        """Return the duration of full measurements of all points, or of some."""
        chosen = range(len(self.space)) if points is None else points
        seconds = sum(
            float(self.setup_s[point]) + PLAN.run_s(float(self.qps[point]), full=True)
            for point in chosen
        )
        modes = {
            (self.space.points[point].device, self.space.points[point].configuration.power_mode)
            for point in chosen
        }
        return seconds + PLAN.switch_s * sum(bool(mode) for _, mode in modes)


class Measurements:
    """Measures a fleet with noise.

    Args:
        fleet: the fleet.
        seed: seed of the noise.
    """

    def __init__(self, fleet: SimulatedFleet, seed: int) -> None:
        self._fleet = fleet
        self._random = np.random.default_rng((seed, 77))

    def measure(self, trial: Trial, *, switches: bool) -> TrialResult:
        """Return the result of a measurement, which takes no time."""
        qps = float(self._fleet.qps[trial.point])
        setup_s = float(self._fleet.setup_s[trial.point])
        error = _FULL_ERROR if trial.full else SHORT_ERROR
        noise = self._random.standard_normal(2)
        watts = float(self._fleet.watts[trial.point]) * math.exp(_WATTS_ERROR * noise[1])
        return TrialResult(
            qps=qps * math.exp(math.hypot(error, self._fleet.noise) * noise[0]),
            watts=watts if self._fleet.metered else 0.0,
            setup_s=setup_s,
            seconds=setup_s + PLAN.run_s(qps, full=trial.full) + switches * PLAN.switch_s,
            error=error,
        )


def reconstructed_profile() -> ConfigurationDictionary:
    """Return the thesis's profile as reconstructed from its publication."""
    path = files("profiler.simulator").joinpath("data/reconstructed_profile.csv")
    return read_csv(path.read_text("utf-8"))


def reconstructed_fleet() -> SimulatedFleet:
    """Return the thesis's 12 engines in 20 configurations of 3 machines, with modelled power."""
    modes = {"agx": AGX, "nx": NX}
    budgets = {"agx": AGX_BUDGETS_W, "nx": NX_BUDGETS_W}
    points, qps, watts, setup_s = [], [], [], []
    for entry in reconstructed_profile():
        name, mode = entry.worker_class, entry.configuration.power_mode
        budget_w = math.inf
        if mode:
            knobs = modes[name][int(mode) - 1]
            budget_w = budgets[name][int(mode) - 1]
        else:
            knobs = X86[0]._replace(threads=entry.configuration.threads)
        points.append(Point(entry.engine, (name, ""), entry.configuration, knobs))
        qps.append(entry.qps)
        watts.append(min(budget_w, _watts(knobs, _MACHINES[name].base_w, 1.0)))
        setup_s.append(entry.t_pre_s)
    return SimulatedFleet(
        "reconstructed", SearchSpace(points), np.array(qps), np.array(watts), np.array(setup_s)
    )


@dataclass(frozen=True, slots=True)
class _Machine:
    """A device of a synthetic fleet: its modes, and what one core does at 1 GHz."""

    modes: tuple[Knobs, ...]
    budgets_w: tuple[float, ...]
    speed: float
    setup: float
    base_w: float

    def levels(self) -> tuple[int, ...]:
        return (1, 2, 4, 6, 8) if len(self.modes) > 1 else (1, 2, 3, 4, 6, 8, 12, 16)


_MACHINES: Final = {
    "x86": _Machine(X86, (math.inf,), 1.0, 1.0, 60.0),
    "agx": _Machine(AGX, AGX_BUDGETS_W, 0.6, 1.1, 6.0),
    "nx": _Machine(NX, NX_BUDGETS_W, 0.5, 1.76, 4.0),
}


@dataclass(frozen=True, slots=True)
class _Family:
    """Range of the properties of similar engines.

    Attributes:
        compute_s: seconds per query of one core at 1 GHz.
        memory: time to wait for memory, as a share of that.
        serial: share of the computation that does not use threads.
    """

    compute_s: tuple[float, float]
    memory: tuple[float, float]
    serial: tuple[float, float]


_FAMILIES: Final = (
    _Family((0.15, 0.40), (0.05, 0.25), (0.03, 0.12)),  # as ResNet-50
    _Family((0.02, 0.06), (0.10, 0.40), (0.08, 0.20)),  # as MobileNet
    _Family((0.02, 0.12), (0.05, 0.30), (0.10, 0.30)),  # with 8-bit weights
    _Family((0.08, 0.30), (0.10, 0.35), (0.20, 0.40)),  # detectors with a serial end
)
ENGINES: Final = 12
COLLAPSING: Final = 0.08


def synthetic_fleet(
    seed: int,
    *,
    slow_setup: bool,
    collapsing: float = COLLAPSING,
    own: float = 0.03,
) -> SimulatedFleet:
    """Draw a fleet of 12 engines in 56 configurations of 3 machines.

    Args:
        seed: seed of the fleet.
        slow_setup: whether T_pre is as in the thesis, 9 s in the median, rather than 0.4 to 3.6 s.
        collapsing: share of the rows whose QPS collapses when all cores compute.
        own: standard deviation of the logarithm of what a point has in common with no other.
    """
    random = np.random.default_rng((seed, 4242))
    points: list[Point] = []
    figures: list[tuple[float, float, float]] = []
    for number in range(ENGINES):
        family = _FAMILIES[number % len(_FAMILIES)]
        compute_s = float(np.exp(random.uniform(*np.log(family.compute_s))))
        memory = random.uniform(*family.memory)
        serial = random.uniform(*family.serial)
        contention = random.uniform(0.0005, 0.006)
        setup_s = float(
            random.lognormal(math.log(9.0), 0.7) if slow_setup else random.uniform(0.4, 3.6)
        )
        intensity = random.lognormal(0.0, 0.12)
        for name, machine in _MACHINES.items():
            here = machine.speed * random.lognormal(0.0, 0.25)
            memory_here = memory * random.lognormal(0.0, 0.2)
            collapse = random.uniform(0.15, 0.6) if random.random() < collapsing else 1.0
            fixed_s = random.uniform(0.0002, 0.002)
            for knobs, budget_w, mode in _points_of(machine):
                base_w = machine.base_w
                clock_mhz = _throttled_mhz(knobs, base_w, intensity, budget_w)
                threads = knobs.threads
                speedup = threads / (
                    1 + serial * (threads - 1) + contention * threads * (threads - 1)
                )
                bandwidth = (1 - 0.6**threads) / 0.4 * (knobs.memory_mhz / 1600) ** 0.7
                per_query_s = (
                    compute_s / here / (clock_mhz / 1000) / speedup
                    + memory_here * compute_s / here / bandwidth
                    + fixed_s
                )
                qps = 1 / per_query_s * random.lognormal(0.0, own)
                if knobs.is_full and threads > 1:
                    qps *= collapse
                at_clock = knobs._replace(clock_mhz=clock_mhz)
                watts = _watts(at_clock, base_w, intensity) * random.lognormal(0.0, own)
                configuration = Configuration(threads, mode)
                points.append(Point(EngineName(f"e{number}"), (name, ""), configuration, knobs))
                figures.append((qps, watts, setup_s * machine.setup * random.lognormal(0.0, 0.05)))
    qps, watts, setups = np.array(figures).T
    name = f"synthetic, T_pre {'9 s' if slow_setup else '2 s'}"
    return SimulatedFleet(name, SearchSpace(points), qps, watts, setups)


def _points_of(machine: _Machine) -> Iterator[tuple[Knobs, float, str]]:
    """Yield knobs, power budget and mode of all configurations."""
    several = len(machine.modes) > 1
    for number, (mode, budget_w) in enumerate(
        zip(machine.modes, machine.budgets_w, strict=True), start=1
    ):
        for threads in machine.levels():
            if threads <= mode.cores:
                yield mode._replace(threads=threads), budget_w, str(number) if several else ""


def _watts(knobs: Knobs, base_w: float, intensity: float) -> float:
    ghz = knobs.clock_mhz / 1000
    volts = 0.55 + 0.28 * ghz
    return base_w + intensity * 1.3 * knobs.threads * ghz * volts**2


def _throttled_mhz(knobs: Knobs, base_w: float, intensity: float, budget_w: float) -> float:
    """Return the clock at which the power stays within the budget."""
    clock_mhz = knobs.clock_mhz
    while _watts(knobs._replace(clock_mhz=clock_mhz), base_w, intensity) > budget_w:
        clock_mhz *= 0.98
    return clock_mhz
