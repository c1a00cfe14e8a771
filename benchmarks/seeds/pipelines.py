"""P. N. Soomro's thesis (Chalmers, 2025): Pipe-search, Shisha, ODIN and Accordion.

Networks run over fast and slow places (`benchmarks.networks`); their times are not measured.
"""

from __future__ import annotations

import statistics
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.networks import FAST, NETWORKS, SLOW, hints, problem
from benchmarks.route_searches import CLOSE, MOST_TRIALS, SEARCHES, tried
from profiler.planning.enumeration import route_count
from profiler.planning.optimal import optimal_route
from profiler.planning.pipe_search import pipe_search
from profiler.planning.tuning import lls, odin, shisha
from profiler.simulator.pipelines import comparison
from profiler.simulator.pipelines.interference import (
    LOAD,
    SECONDS,
    Planning,
    Searching,
    Served,
    drawn_slowdowns,
    served,
)
from profiler.simulator.pipelines.places import SLOS, STREAMS, draw_stream, measured_widths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.route_searches import Searching as Searches
    from benchmarks.seeds.rows import Figures, Group
    from profiler.simulator.pipelines.comparison import StreamResult
    from profiler.simulator.pipelines.interference import Balancer
    from synergai.core.routes.planner import Search
    from synergai.core.routes.problem import RouteProblem

COMPARED: Final = ("VGG16", "ResNet50")
PLACES: Final = 4
SEEDS: Final = range(6)
ALPHAS: Final = (1, 2, 3, 5, 10)
LEVELS: Final = (0.7, 0.85)
WINDOW_S: Final = 5.0
"""Time over which throughput is compared with a level."""
MANY_PLACES: Final = (4, 8, 16, 28, 52)
GAPS_S: Final = (5.0, 20.0)
"""Mean times between slow-downs."""
ACCORDION_SEEDS: Final = range(5)


# --- searches -------------------------------------------------------------------------------------


@cache
def _trials(network: str, name: str) -> list[list[float]]:
    """Return the shares of the optimum that a search reaches, one after the other, by fleet."""
    found = []
    for slow in range(1, PLACES):
        drawn = problem(network, [FAST] * (PLACES - slow) + [SLOW] * slow)
        optimum = optimal_route(drawn)
        assert optimum is not None
        optimum_s = drawn.times(optimum).seconds(drawn.queries)
        search = _search(network, name)(drawn, slow)
        found.append([optimum_s / seconds for seconds in tried(drawn, search)])
    return found


def _search(network: str, name: str) -> Searches:
    if name == "pipe_search":
        return lambda drawn, _: pipe_search(drawn, hints(network))
    if name == "shisha":
        return lambda drawn, _: shisha(drawn)
    return SEARCHES[name]


def _first_close(name: str) -> float:
    """Return the mean number of trials until a route is close to the optimum."""
    firsts = [
        next((n for n, share in enumerate(shares, 1) if share >= CLOSE), MOST_TRIALS)
        for network in COMPARED
        for shares in _trials(network, name)
    ]
    return statistics.fmean(firsts)


def of_pipe_search() -> Figures:
    """Return how much sooner Pipe-search is close, and how many of its trials are."""
    own = _first_close("pipe_search")
    spaces = [route_count(len(NETWORKS[name]), PLACES) for name in COMPARED]
    runs = [_trials(network, "pipe_search") for network in COMPARED]
    shares = [share >= CLOSE for run in runs for fleet in run for share in fleet]
    trials = statistics.fmean(len(fleet) for run in runs for fleet in run)
    return {
        "pipe_search.exhaustive": f"{statistics.fmean(spaces) / trials:.0f}",
        "pipe_search.random": f"{_first_close('random walk') / own:.1f}",
        "pipe_search.good": f"{100 * statistics.fmean(shares):.0f} %",
    }


def of_shisha() -> Figures:
    """Return which share of the space Shisha tries, and how it compares with other searches."""
    runs = [fleet for n in COMPARED for fleet in _trials(n, "shisha")]
    spaces = [route_count(len(NETWORKS[name]), PLACES) for name in COMPARED]
    others = ("hill climbing", "annealing", "random walk", "pipe_search")
    own = _first_close("shisha")
    share = statistics.fmean(map(len, runs)) / statistics.fmean(spaces)
    return {
        "shisha.share": f"{100 * share:.2f} %",
        "shisha.sooner": f"{statistics.fmean(map(_first_close, others)) / own:.0f}",
        "shisha.optimum": f"{100 * statistics.fmean(map(max, runs)):.1f} %",
    }


# --- interference ---------------------------------------------------------------------------------


def _searching(planner: Callable[[RouteProblem], Search]) -> Callable[[RouteProblem], Balancer]:
    return lambda drawn: Searching(drawn, planner)


BALANCERS: Final[dict[str, Callable[[RouteProblem], Balancer]]] = {
    "lls": _searching(lls),
    **{f"odin {alpha}": _searching(partial(odin, alpha=alpha)) for alpha in ALPHAS},
    "planning": Planning,
}


@cache
def _runs(
    network: str, balancer: str, gap_s: float = GAPS_S[0]
) -> list[tuple[list[Served], list[Served], float]]:
    """Return what was served as fast as possible and at a fixed rate, and the undisturbed rate."""
    drawn = problem(network, [FAST] * PLACES)
    best = optimal_route(drawn)
    assert best is not None
    interval_s = drawn.times(best).interval_s
    found = []
    for seed in SEEDS:
        names = [worker.name for worker in drawn.workers]
        slowdowns = drawn_slowdowns(seed, names, gap_s=gap_s)
        closed = served(drawn, slowdowns, BALANCERS[balancer](drawn))
        paced = served(drawn, slowdowns, BALANCERS[balancer](drawn), interval_s / LOAD)
        found.append((closed, paced, 1 / interval_s))
    return found


def _rate(balancer: str, gap_s: float = GAPS_S[0]) -> float:
    """Return the mean throughput as a share of the undisturbed one."""
    runs = [run for n in COMPARED for run in _runs(n, balancer, gap_s)]
    return statistics.fmean(len(closed) / SECONDS / rate for closed, _, rate in runs)


def _latency_s(balancer: str, gap_s: float = GAPS_S[0]) -> float:
    runs = [run for n in COMPARED for run in _runs(n, balancer, gap_s)]
    return statistics.fmean(statistics.fmean(q.seconds for q in paced) for _, paced, _ in runs)


def _violations(balancer: str, level: float) -> float:
    """Return the share of windows whose throughput is below a share of the undisturbed one."""
    late: list[bool] = []
    for network in COMPARED:
        for closed, _, rate in _runs(network, balancer):
            ended = [query.ended for query in closed]
            counts, _ = np.histogram(ended, bins=int(SECONDS / WINDOW_S), range=(0, SECONDS))
            late += [bool(count < level * rate * WINDOW_S) for count in counts]
    return statistics.fmean(late)


def of_odin() -> Figures:
    """Return ODIN beside LLS, by alpha, level, and how long slow-downs last."""
    found = {}
    for alpha in (10, 2):
        gain = 1 - _latency_s(f"odin {alpha}") / _latency_s("lls")
        found[f"odin.latency.{alpha}"] = f"{100 * gain:+.1f} %"
    for gap_s in GAPS_S:
        gain = _rate("odin 10", gap_s) / _rate("lls", gap_s) - 1
        found[f"odin.rate.{gap_s:g}"] = f"{100 * gain:+.1f} %"
    found["odin.alphas"] = ", ".join(f"{100 * _rate(f'odin {alpha}'):.0f}" for alpha in ALPHAS)
    for name in ("odin 10", "lls", "planning"):
        found[f"{name}.sustained"] = f"{100 * _rate(name):.0f} %"
        for level in LEVELS:
            found[f"{name}.level.{level:g}"] = f"{100 * _violations(name, level):.0f} %"
    return found


def of_many_places() -> Figures:
    """Return latency and throughput of ResNet152 by the number of places, without interference."""
    times = []
    for places in MANY_PLACES:
        drawn = problem("ResNet152", [FAST] * places)
        best = optimal_route(drawn)
        assert best is not None
        times.append(drawn.times(best))
    return {
        "places.latency": ", ".join(f"{1000 * each.latency_s:.0f}" for each in times),
        "places.rate": ", ".join(f"{1 / each.interval_s:.1f}" for each in times),
    }


# --- Accordion ------------------------------------------------------------------------------------


@cache
def _streams() -> list[StreamResult]:
    widths = measured_widths()
    return [
        result
        for run in product(STREAMS, SLOS, ACCORDION_SEEDS)
        for result in comparison.run_schedulers(run, draw_stream(*run, widths), widths)
    ]


def _of_scheduler(
    figure: Callable[[StreamResult], float], name: str, slo: str = "", load: str = ""
) -> float:
    return statistics.fmean(
        figure(each)
        for each in _streams()
        if each.scheduler == name and slo in (each.slo, "") and load in each.stream
    )


def _late(each: StreamResult) -> float:
    return 100 * each.violations / each.queries


def _baselines_over(
    names: Sequence[str], figure: Callable[[StreamResult], float], slo: str = "", load: str = ""
) -> float:
    """Return the mean of baselines over that of Accordion."""
    others = statistics.fmean(_of_scheduler(figure, name, slo, load) for name in names)
    return others / _of_scheduler(figure, "accordion", slo, load)


def of_accordion() -> Figures:
    """Return Accordion beside its baselines, under all loads and under a light one."""
    baselines = [each for each in comparison.SCHEDULERS if each != "accordion"]
    found: Figures = {}
    for names, key in ((("slo_conforming", "fastest"), ""), (("one_stage",), ".one_stage")):
        latency = _baselines_over(names, lambda each: each.mean_s)
        rate = _baselines_over(names, lambda each: each.rate)
        found |= {f"accordion.latency{key}": f"{latency:.2f}"}
        found |= {f"accordion.rate{key}": f"{1 / rate:.2f}"}
    for load in ("", "light"):
        for slo in ("strict", "moderate"):
            fewer = _baselines_over(baselines, _late, slo, load)
            found[f"accordion.{slo}{load and '.light'}"] = f"{fewer:.2f}"
        late = _of_scheduler(_late, "accordion", "relaxed", load)
        found[f"accordion.relaxed{load and '.light'}"] = f"{late:.1f} %"
    full = _of_scheduler(lambda each: 100 * (each.full or 0.0), "accordion", "", "overload")
    conforming = _baselines_over(("slo_conforming",), _late, "moderate")
    return found | {
        "accordion.full": f"{full:.0f} %",
        "accordion.moderate.conforming": f"{conforming:.2f}",
    }


GROUPS: Final[dict[str, Group]] = {
    "pipe_search": of_pipe_search,
    "shisha": of_shisha,
    "odin": of_odin,
    "places": of_many_places,
    "accordion": of_accordion,
}
