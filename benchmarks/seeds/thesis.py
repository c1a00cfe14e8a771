"""F. Stathopoulou's diploma thesis (2025): policies under three readings of T_pre.

Every figure is a mean over seeds, in the order of `READINGS`.
"""

from __future__ import annotations

from functools import cache, partial
from statistics import fmean
from typing import TYPE_CHECKING, Final

from benchmarks.report import table
from benchmarks.seeds.rows import SEPARATOR
from profiler.dictionary.files import load_dictionary
from profiler.reports.printed import CELLS, EXPERIMENTS, P99_OVER_SYNERGAI
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE, SimulatorSettings
from profiler.simulator.sweep import sweep
from profiler.simulator.workload import Profile, TPre
from synergai.domain import EngineName, WorkerClass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.seeds.rows import Figures, Group
    from profiler.simulator.simulation import SimulationResult

READINGS: Final[tuple[TPre, ...]] = ("none", "proportional", "fixed")
SEEDS: Final = "1000-1029"
BASELINES: Final = ("rr", "srr", "lru", "mru", "be")
RIVAL, OURS, MALLEABLE = "slo_mael", "synergai", "malleable"
POLICIES: Final = (*BASELINES, RIVAL, OURS)

# Attribute of a result, unit in its own, and digits.
_OWN: Final = (("violations", 1.0, 1), ("e2e_mean_s", 60.0, 2), ("e2e_p99_s", 60.0, 1))
# Attributes of printed cells and of results.
_PRINTED: Final = {
    "violations": "violations",
    "excess_s": "mean_excess_s",
    "wait_s": "mean_wait_s",
}
# Printed end-to-end times in seconds: means, and the 99th percentiles of SynergAI.
_E2E: Final = {
    (OURS, "DL-FL"): 74.4,
    (OURS, "DL-FH"): 138.0,
    (OURS, "DH-FL"): 72.0,
    (OURS, "DH-FH"): 165.0,
    (RIVAL, "DL-FL"): 108.0,
    (RIVAL, "DL-FH"): 1.5 * 138.0,
    (RIVAL, "DH-FL"): 1.56 * 72.0,
    (RIVAL, "DH-FH"): 1.3 * 165.0,
}
_P99: Final = {"DL-FL": 258.0, "DH-FL": 253.8}


@cache
def results(reading: TPre, policy: str) -> dict[str, list[SimulationResult]]:
    """Return the runs of a policy by experiment."""
    settings = SimulatorSettings(policies=(policy,), seeds=SEEDS, t_pre=reading)
    found: dict[str, list[SimulationResult]] = {name: [] for name in EXPERIMENTS}
    for result in sweep(settings, _profile()):
        found[result.experiment].append(result)
    return found


@cache
def _profile() -> Profile:
    return Profile(load_dictionary(RECONSTRUCTED_PROFILE))


def _mean(reading: TPre, policy: str, experiment: str, name: str) -> float:
    return fmean(getattr(each, name) for each in results(reading, policy)[experiment])


def _total(reading: TPre, policy: str, name: str) -> float:
    return sum(_mean(reading, policy, experiment, name) for experiment in EXPERIMENTS)


def _joined(values: Iterable[float], digits: int = 2) -> str:
    return SEPARATOR.join(f"{value:.{digits}f}" for value in values)


def of_policy(policy: str, readings: Sequence[TPre] = READINGS) -> Figures:
    """Return violations in all and, for the thesis's own policy and ours, all by experiment."""
    found = {
        f"{policy}.violations": _joined((_total(r, policy, "violations") for r in readings), 1)
    }
    if policy not in (OURS, MALLEABLE):
        return found
    for experiment in EXPERIMENTS:
        for name, unit, digits in _OWN:
            values = (_mean(reading, policy, experiment, name) / unit for reading in readings)
            found[f"{policy}.{name}.{experiment}"] = _joined(values, digits)
    return found


def of_profile() -> Figures:
    """Return by how much T_pre differs between the engines that the thesis compares."""
    x86 = WorkerClass("x86")
    slow, fast = (
        _profile().best(EngineName(name), x86) for name in ("onnx_mobilenet_op11", "tf_resnet50")
    )
    return {"t_pre.ratio": f"{slow.t_pre_s / fast.t_pre_s:.1f}"}


def of_factors() -> Figures:
    """Return the factors of SLO-MAEL and of the baselines over SynergAI."""
    found: Figures = {}
    for experiment in EXPERIMENTS:
        for name in ("violations", "mean_excess_s", "e2e_mean_s", "mean_wait_s"):
            found[f"{RIVAL}.{name}.{experiment}"] = _over_ours((RIVAL,), name, [experiment])
        for policy in P99_OVER_SYNERGAI.get(experiment, {}):
            found[f"{policy}.p99.{experiment}"] = _over_ours((policy,), "e2e_p99_s", [experiment])
    found["baselines.p99.DH-FH"] = _over_ours(BASELINES, "e2e_p99_s", ["DH-FH"])
    for name in ("violations", "mean_excess_s"):
        found[f"baselines.over.{name}"] = _over_ours(BASELINES, name, EXPERIMENTS)
        found[f"{RIVAL}.over.{name}"] = _over_ours((RIVAL,), name, EXPERIMENTS)
    return found


def _over_ours(policies: Sequence[str], name: str, experiments: Sequence[str]) -> str:
    """Return the mean of policies over that of SynergAI, summed over experiments."""

    def total(reading: TPre, policy: str) -> float:
        return sum(_mean(reading, policy, experiment, name) for experiment in experiments)

    return _joined(
        fmean(total(reading, policy) for policy in policies) / total(reading, OURS)
        for reading in READINGS
    )


def cells_table() -> str:
    """Return the 28 printed cells of violations beside the range over seeds.

    A range that lacks the printed figure is bold.
    """
    rows = []
    for (policy, experiment), cell in CELLS.items():
        row = [f"`{policy}`, {experiment}", str(cell.violations)]
        for reading in READINGS:
            values = [each.violations for each in results(reading, policy)[experiment]]
            inside = min(values) <= cell.violations <= max(values)
            text = f"{fmean(values):.1f} ({min(values)}-{max(values)})"
            row.append(text if inside else f"**{text}**")
        rows.append(row)
    return table(["cell", "printed", *READINGS], rows)


def e2e_cells() -> list[tuple[str, str, str, float]]:
    """Return policy, experiment, metric and seconds of the cells whose times are printed.

    Of the baselines, only 99th percentiles are, as multiples of SynergAI's.
    """
    found = [(*cell, "e2e_mean_s", seconds) for cell, seconds in _E2E.items()]
    found += [
        (policy, experiment, "e2e_p99_s", factor * _P99[experiment])
        for experiment, factors in P99_OVER_SYNERGAI.items()
        for policy, factor in factors.items()
    ]
    return found


def of_cells() -> Figures:
    """Return how many printed cells lie in the range over seeds, and the mean deviation in jobs."""
    cells = {
        f"cells.{name}": [(*cell, name, getattr(printed, key)) for cell, printed in CELLS.items()]
        for key, name in _PRINTED.items()
    }
    cells["cells.end-to-end"] = e2e_cells()
    found = {
        key: SEPARATOR.join(str(sum(_is_within(r, *cell) for cell in each)) for r in READINGS)
        for key, each in cells.items()
    }
    deviations = (
        fmean(
            abs(_mean(reading, policy, experiment, "violations") - cell.violations)
            for (policy, experiment), cell in CELLS.items()
        )
        for reading in READINGS
    )
    return found | {"cells.deviation": _joined(deviations)}


def _is_within(reading: TPre, policy: str, experiment: str, name: str, printed: float) -> bool:
    values = [getattr(each, name) for each in results(reading, policy)[experiment]]
    return bool(min(values) <= printed <= max(values))


GROUPS: Final[dict[str, Group]] = {
    **{policy: partial(of_policy, policy) for policy in (*POLICIES, MALLEABLE)},
    "profile": of_profile,
    "factors": of_factors,
    "cells": of_cells,
}
