"""Engines, servers and demand in which rules are compared; most are J. L. Buijnsters's (2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.variants.simulation import Scenario
from synergai.domain import EngineName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.variants.simulation import Fronts

_FASHION, _CIFAR10, _CIFAR100 = map(EngineName, ("fashion", "cifar10", "cifar100"))

FRONTS: Final[Mapping[EngineName, Mapping[str, tuple[float, float]]]] = {
    # Pruned and quantised networks for Fashion-MNIST, slowed down so that the largest takes as long
    # as the thesis's on a Raspberry Pi.
    _FASHION: {
        "p100": (0.2330, 0.8950),
        "p75-int8": (0.0704, 0.8861),
        "p50-int8": (0.0352, 0.8779),
        "p25": (0.0316, 0.8646),
        "p12": (0.0115, 0.8231),
    },
    # DenseNets and a MobileNet in the proportions that the thesis prints.
    _CIFAR10: {
        "medium": (0.2500, 0.9370),
        "medium-v1": (0.1900, 0.9250),
        "medium-v3": (0.0900, 0.8982),
        "medium-v4": (0.0568, 0.8804),
        "mobile": (0.0132, 0.5500),
    },
    _CIFAR100: {
        "medium": (0.2800, 0.6590),
        "medium-v1": (0.1400, 0.6300),
        "medium-v3": (0.0700, 0.5800),
        "small": (0.0180, 0.4200),
    },
}
_TWO_CORES: Final = {
    "p100": 2.25,
    "p75-int8": 2.14,
    "p50-int8": 2.12,
    "p25": 2.12,
    "p12": 1.62,
    "medium": 2.25,
    "medium-v1": 2.26,
    "medium-v3": 2.14,
    "medium-v4": 2.12,
    "mobile": 1.62,
    "small": 1.80,
}
"""Throughput on two cores relative to one (Table 5.1). Variants that are not in the table have the
figure of one that is about as fast, as below."""
_CONTESTED_25: Final = {"p100": 0.69, "p75-int8": 0.70, "p50-int8": 0.71, "p25": 0.71, "p12": 0.69}
_CONTESTED_50: Final = {"p100": 0.42, "p75-int8": 0.43, "p50-int8": 0.50, "p25": 0.50, "p12": 0.52}
"""Throughput beside another model at 25 and 50 % of its own maximum (Table 5.1)."""
_HALF_CORE: Final = dict.fromkeys(_TWO_CORES, 0.5)

# Measured like the times of the engine, each scaled so that the largest variant has the same.
SWITCH_QUERIES: Final = 16.0
"""Queries in the time of a load and a first query: 0.875 s at 18.3 queries per second.

That is T_pre of `onnx_resnet50_op11` with one thread, as the profiler measured it in the agent.
"""
_MEGAFLOPS: Final = {"p100": 4.36, "p75-int8": 2.46, "p50-int8": 1.10, "p25": 0.28, "p12": 0.07}
_LATENCY_US: Final = {"p100": 112.0, "p75-int8": 44.6, "p50-int8": 27.3, "p25": 20.2, "p12": 13.4}


def _faster(fronts: Fronts, times: Mapping[str, float]) -> Fronts:
    """Return fronts with a multiple of the throughput, by variant."""
    return {
        engine: {name: (seconds / times[name], value) for name, (seconds, value) in front.items()}
        for engine, front in fronts.items()
    }


def _costing(front: Mapping[str, tuple[float, float]], cost: Mapping[str, float]) -> Fronts:
    """Return the front that a profile of another cost has, in seconds of the slowest variant."""
    slowest = max(front, key=lambda name: front[name][0])
    unit = front[slowest][0] / cost[slowest]
    return {_FASHION: {name: (unit * cost[name], value) for name, (_, value) in front.items()}}


_ONE: Final = frozenset({_FASHION})
_ALL: Final = frozenset(FRONTS)
_SINGLE: Final = Scenario(name="single server", fronts={_FASHION: FRONTS[_FASHION]}, layout=[_ONE])
_CO_LOCATED: Final = Scenario(name="co-located", fronts=FRONTS, layout=[_ALL])
_SCENARIOS: Final = (
    _SINGLE,
    replace(_SINGLE, name="three servers", layout=[_ONE] * 3),
    _CO_LOCATED,
    Scenario(
        name="distributed",
        fronts=FRONTS,
        layout=[
            frozenset({_FASHION, _CIFAR10}),
            frozenset({_CIFAR10, _CIFAR100}),
            frozenset({_CIFAR100, _FASHION}),
        ],
    ),
    replace(_CO_LOCATED, name="half a core", fronts=_faster(FRONTS, _HALF_CORE)),
    replace(_CO_LOCATED, name="two cores", fronts=_faster(FRONTS, _TWO_CORES)),
    replace(_SINGLE, name="contested 25%", contested=_CONTESTED_25),
    replace(_SINGLE, name="contested 50%", contested=_CONTESTED_50),
    replace(_CO_LOCATED, name="interfering", interference=0.1),
    replace(_SINGLE, name="switching", switch_queries=SWITCH_QUERIES),
    replace(_CO_LOCATED, name="co-located switching", switch_queries=SWITCH_QUERIES),
    replace(_SINGLE, name="by flops", profile=_costing(FRONTS[_FASHION], _MEGAFLOPS)),
    replace(_SINGLE, name="by latency", profile=_costing(FRONTS[_FASHION], _LATENCY_US)),
)
SCENARIOS: Final = {each.name.replace(" ", "-").removesuffix("%"): each for each in _SCENARIOS}
RATES: Final = {
    "single-server": (3.0, 8.0, 16.0),
    "three-servers": (24.0, 48.0),
    "co-located": (3.0, 9.0),
    "distributed": (9.0, 27.0),
    "half-a-core": (4.5,),
    "two-cores": (18.0,),
    "contested-25": (8.0,),
    "contested-50": (8.0,),
    "interfering": (9.0,),
    "switching": (3.0, 8.0, 16.0),
    "co-located-switching": (3.0, 9.0),
    "by-flops": (3.0, 8.0, 16.0),
    "by-latency": (3.0, 8.0, 16.0),
}
"""Requests per second of all engines together."""


def draw(seed: int, servers: int = 1, error: float = 0.1) -> tuple[Scenario, float]:
    """Return servers with an engine of random variants, and a rate that they manage.

    The rate is between 0.7 of what the slowest variant manages and 0.6 of what the fastest does.

    Args:
        seed: random seed.
        servers: number of servers.
        error: standard deviation of the logarithm of actual over profiled times.
    """
    random = np.random.default_rng(seed)
    count = int(random.integers(3, 7))
    slowest_s = random.uniform(0.08, 0.25)
    shares = np.sort(random.uniform(0.05, 0.95, count - 2))
    seconds = slowest_s / random.uniform(4, 20) ** np.array([0.0, *shares, 1.0])
    best, drop = random.uniform(0.6, 0.95), random.uniform(0.02, 0.3)
    lost = np.array([0.0, *np.sort(random.uniform(0, 1, count - 2)), 1.0]) ** random.uniform(1.5, 4)
    front = {
        f"v{number}": (float(each), float(best * (1.0 - drop * share)))
        for number, (each, share) in enumerate(zip(seconds, lost, strict=True))
    }
    scenario = replace(
        _SINGLE,
        name=f"drawn {seed}",
        fronts={_FASHION: front},
        layout=[_ONE] * servers,
        deadline_s=max(float(random.uniform(0.3, 0.6)), 1.6 * slowest_s),
        error=error,
    )
    rate = np.exp(random.uniform(np.log(0.7 / seconds[0]), np.log(0.6 / seconds[-1])))
    return scenario, float(rate) * servers
