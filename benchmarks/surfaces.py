"""Families of surfaces other than those of the synthetic fleets, with true figures.

Each family has one peculiarity, such as a power mode off the trend of its clock. Machines, engines
and peculiarities are drawn: a server with one mode, and a board with several, twelve engines each.
None of this was measured on hardware.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from benchmarks.simulated_fleets import ENGINES, SimulatedFleet
from profiler.measuring.search.space import Knobs, Point, SearchSpace
from synergai.domain import Configuration, EngineName

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

Speed: TypeAlias = "Callable[[Knobs], float]"
"""QPS of an engine on a machine, up to a constant."""
_LEVELS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class Machine:
    """A drawn machine.

    Attributes:
        name: its worker class.
        modes: limits of its power modes; a server has one.
        base_w: power that does not depend on the load.
        seed: seed of what its engines have in common.
    """

    name: str
    modes: tuple[Knobs, ...]
    base_w: float
    seed: int

    def draws(self) -> Generator:
        """Return a source of draws that are the same for all engines on the machine."""
        return np.random.default_rng(self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of surface.

    Attributes:
        name: for the report.
        speed: draws the speed of an engine on a machine.
        confounded: whether modes with more cores have lower clocks.
        metered: whether power can be measured.
        noise: range of the standard error of a measurement that the measurement does not state.
        own: standard deviation of the logarithm of what a point has in common with no other.
    """

    name: str
    speed: Callable[[Machine, Generator], Speed]
    confounded: bool = False
    metered: bool = True
    noise: tuple[float, float] = (0.0, 0.0)
    own: float = 0.02


def draw(family: Family, seed: int) -> SimulatedFleet:
    """Draw a fleet of a server and a board with twelve engines."""
    random = np.random.default_rng((seed, 31))
    machines = (_server(random), _board(random, confounded=family.confounded))
    median_setup_s = random.choice((1.5, 9.0))
    noise = float(random.uniform(*family.noise))
    points, figures = [], []
    for number in range(ENGINES):
        level = math.exp(random.uniform(math.log(3.0), math.log(200.0)))
        setup_s = median_setup_s * random.lognormal(0.0, 0.6)
        intensity = random.lognormal(0.0, 0.15)
        for machine in machines:
            speed = family.speed(machine, random)
            here = level * random.lognormal(0.0, 0.3)
            for mode, limits in enumerate(machine.modes, start=1):
                for threads in _LEVELS:
                    if threads > limits.cores:
                        break
                    knobs = limits._replace(threads=threads)
                    name = str(mode) if len(machine.modes) > 1 else ""
                    points.append(
                        Point(
                            EngineName(f"e{number}"),
                            (machine.name, ""),
                            Configuration(threads, name),
                            knobs,
                        )
                    )
                    figures.append(
                        (
                            here * speed(knobs) * random.lognormal(0.0, family.own),
                            machine.base_w + intensity * _power(knobs),
                            setup_s * random.lognormal(0.0, 0.05),
                        )
                    )
    qps, watts, setups = np.array(figures).T
    return SimulatedFleet(
        family.name,
        SearchSpace(points),
        qps,
        watts,
        setups,
        noise,
        family.metered,
    )


def _server(random: Generator) -> Machine:
    cores = int(random.choice((8, 16, 32)))
    limits = Knobs(cores, cores, float(random.uniform(2000, 3500)), 2666.0)
    return Machine("server", (limits,), 60.0, int(random.integers(2**31)))


def _board(random: Generator, *, confounded: bool) -> Machine:
    top_mhz = float(random.uniform(1500, 2300))
    slope = random.uniform(0.4, 1.0)
    modes = []
    for _ in range(int(random.integers(4, 8))):
        cores = int(random.choice((2, 4, 6, 8)))
        if confounded:
            clock_mhz = top_mhz * (2 / cores) ** slope * random.uniform(0.97, 1.03)
        else:
            clock_mhz = top_mhz * random.uniform(0.55, 1.0)
        memory_mhz = float(random.choice((1331.2, 1600.0, 2133.0)))
        modes.append(Knobs(cores, cores, float(clock_mhz), memory_mhz))
    return Machine("board", tuple(modes), 5.0, int(random.integers(2**31)))


def _power(knobs: Knobs) -> float:
    ghz = knobs.clock_mhz / 1000
    return 1.3 * knobs.threads * ghz * (0.55 + 0.28 * ghz) ** 2


def _ghz(knobs: Knobs) -> float:
    return knobs.clock_mhz / 1000


# --- the families -----------------------------------------------------------------------------


def _usual(_: Machine, random: Generator) -> Speed:
    """Amdahl's law with contention, which may cost more than further threads bring."""
    serial, exponent = random.uniform(0.02, 0.3), random.uniform(0.6, 1.0)
    contention = 10 ** random.uniform(-4.0, -1.7)

    def speed(k: Knobs) -> float:
        slowdown = 1 + serial * (k.threads - 1) + contention * k.threads * (k.threads - 1)
        return float(_ghz(k) ** exponent * k.threads / slowdown)

    return speed


def _off_trend(machine: Machine, random: Generator) -> Speed:
    """One of the machine's slower modes is faster than its clock and cores say."""
    draws = machine.draws()
    slower = sorted(machine.modes, key=_power)[: (len(machine.modes) + 1) // 2]
    odd = slower[int(draws.integers(len(slower)))]
    factor = math.exp(draws.uniform(0.3, 0.9)) * random.lognormal(0.0, 0.1)
    usual = _usual(machine, random)
    return lambda k: usual(k) * (factor if k._replace(threads=odd.threads) == odd else 1.0)


def _saturating(_: Machine, random: Generator) -> Speed:
    """More threads than an engine can use change nothing, or harm a little."""
    useful, sharpness = random.uniform(1.5, 8.0), random.uniform(3.0, 8.0)
    harm = random.uniform(0.0, 0.05)
    exponent = random.uniform(0.6, 1.0)

    def speed(k: Knobs) -> float:
        gained = (k.threads**-sharpness + useful**-sharpness) ** (-1 / sharpness)
        return float(_ghz(k) ** exponent * gained * (1 - harm) ** max(0.0, k.threads - useful))

    return speed


def _memory_bound(_: Machine, random: Generator) -> Speed:
    """The clock of the memory matters more than that of the cores."""
    compute, channels = random.uniform(0.05, 0.3), random.uniform(1.5, 4.0)

    def speed(k: Knobs) -> float:
        bandwidth = k.memory_mhz / 1600 * channels * (1 - math.exp(-k.threads / channels))
        return float(1 / (compute / (_ghz(k) * k.threads) + (1 - compute) / bandwidth))

    return speed


def _numa(machine: Machine, random: Generator) -> Speed:
    """Threads beyond a node or a cluster of cores share a slower path."""
    node = int(machine.draws().choice((2, 4, 8)))
    step = random.uniform(0.6, 1.02)
    usual = _usual(machine, random)
    return lambda k: usual(k) * step ** math.log2(math.ceil(k.threads / node))


def _throttling(machine: Machine, random: Generator) -> Speed:
    """Beyond a power that the machine can cool, clocks fall below what they would need."""
    most_w = max(_power(limits) for limits in machine.modes)
    cooled_w = machine.draws().uniform(0.3, 0.8) * most_w
    intensity, penalty = random.lognormal(0.0, 0.15), random.uniform(0.75, 0.95)
    usual = _usual(machine, random)

    def speed(k: Knobs) -> float:
        if intensity * _power(k) <= cooled_w:
            return usual(k)
        clock_mhz = k.clock_mhz
        while intensity * _power(k._replace(clock_mhz=clock_mhz)) > cooled_w:
            clock_mhz *= 0.98
        return penalty * usual(k._replace(clock_mhz=clock_mhz))

    return speed


def _hyper_threads(machine: Machine, random: Generator) -> Speed:
    """Half of the cores are second threads of others."""
    gain = machine.draws().uniform(0.75, 1.25) * random.lognormal(0.0, 0.08)
    usual = _usual(machine, random)

    def speed(k: Knobs) -> float:
        whole = k.cores / 2
        if k.threads <= whole:
            return usual(k)
        beyond = (k.threads - whole) / whole
        return usual(k._replace(threads=int(whole))) * (1 + (gain - 1) * beyond)

    return speed


def _collapsing(machine: Machine, random: Generator) -> Speed:
    """Every fifth engine collapses where all cores compute."""
    left = random.uniform(0.15, 0.6) if random.random() < 0.2 else 1.0
    usual = _usual(machine, random)
    return lambda k: usual(k) * (left if k.is_full and k.threads > 1 else 1.0)


def _uneven_cores(machine: Machine, random: Generator) -> Speed:
    """Some cores are slower, and every thread waits for the slowest one."""
    draws = machine.draws()
    fast, slow = int(draws.choice((2, 4))), draws.uniform(0.4, 0.8)
    waits = random.uniform(0.3, 1.0)
    usual = _usual(machine, random)
    return lambda k: usual(k) * (1 - waits * (1 - slow) * (k.threads > fast))


def _even_splits(machine: Machine, random: Generator) -> Speed:
    """Thread counts that are no power of two split the work badly."""
    lost = random.uniform(0.05, 0.3)
    usual = _usual(machine, random)
    return lambda k: usual(k) * (1 - lost * (k.threads & (k.threads - 1) > 0))


def _any(machine: Machine, random: Generator) -> Speed:
    """Each engine has one of all peculiarities."""
    of = (_off_trend, _saturating, _memory_bound, _numa, _throttling, _hyper_threads, _collapsing)
    return of[int(random.integers(len(of)))](machine, random)


FAMILIES: Final = (
    Family(name="no power meter", speed=_any, metered=False),
    Family(name="a mode off the trend", speed=_off_trend),
    Family(name="saturating threads", speed=_saturating),
    Family(name="memory-bound", speed=_memory_bound),
    Family(name="NUMA steps", speed=_numa),
    Family(name="throttling", speed=_throttling),
    Family(name="noise of 5 to 10 %", speed=_usual, noise=(0.05, 0.10)),
    Family(name="clock against cores", speed=_usual, confounded=True),
    Family(name="hyper-threads", speed=_hyper_threads),
    Family(name="rough and collapsing", speed=_collapsing, own=0.08),
)
"""Families that were looked at while the search was tuned, with other seeds."""
HELD_OUT: Final = (
    Family(name="uneven cores (held out)", speed=_uneven_cores),
    Family(name="even splits (held out)", speed=_even_splits),
)
"""Families that were not."""
