"""Drawn sequences of changes of a fleet, and the best deployment in each of their states."""

from __future__ import annotations

from itertools import combinations, pairwise, permutations
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from synergai.core.routes.problem import HOST_BYTES, SESSION_PER_WEIGHT, Leg, Route

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Routes: TypeAlias = tuple[Route, ...]

MBIT: Final = 1e6 / 8
PAYLOAD: Final = 1448 / 1514
"""Share of an Ethernet frame that is payload of TCP. The rate of a link counts whole frames."""
WHOLE_S: Final = 0.1
"""Time of a query on a worker of pace 1."""
PACES: Final = (1.0, 2.5)
MBIT_S: Final = (60.0, 600.0)
MEMORY_MB: Final = (115, 160)
"""Of a worker: too little for a whole engine. With two engines, each has as much."""
LESS_MB: Final = (0.675, 0.85)
"""Share of its memory that is left to a worker that loses some."""
AFFINITY: Final = 3.0
"""How many times as long as on others a kind of worker takes for the blocks of one half."""
CHANGES: Final = ("join", "leave", "slow down", "lose memory", "change a link", "shift", "version")
_CHUNK: Final = 512


class Network(Struct, frozen=True):
    """An engine of blocks.

    Attributes:
        sizes: bytes of the tensors of a query before each block, and of the outputs.
        weights: bytes of the weights of each block.
        seconds: time of each block on a worker of pace 1.
    """

    name: str
    sizes: tuple[int, ...]
    weights: tuple[int, ...]
    seconds: tuple[float, ...]

    def seconds_on(self, machine: Machine) -> tuple[float, ...]:
        """Return the time of each block on a worker."""
        half = len(self.seconds) // 2
        return tuple(
            machine.pace * seconds * (1.0 if (block < half) == machine.is_early else AFFINITY)
            for block, seconds in enumerate(self.seconds)
        )

    def memory_bytes(self, first: int, last: int) -> float:
        """Return the memory that a planner expects of an engine host with a stage."""
        return HOST_BYTES + SESSION_PER_WEIGHT * sum(self.weights[first:last])


class Machine(Struct, frozen=True):
    """A worker.

    Attributes:
        pace: how many times as long as on one of pace 1 a query takes.
        is_early: whether it is faster in the first half of the blocks, and not in the second one.
        mbit_s: rate at which it sends, and at which it receives.
    """

    pace: float
    is_early: bool
    memory_mb: int
    mbit_s: float


class State(Struct, frozen=True):
    """A fleet and its demand.

    Attributes:
        change: what has changed last.
        mix: queries of each engine in a row of queries.
        version: of the engines.
    """

    change: str
    machines: dict[str, Machine]
    mix: dict[str, int]
    version: int = 1


class Best(NamedTuple):
    """The best deployment: the routes of each engine, and the rate of their queries."""

    routes: dict[str, Routes]
    per_s: float


def draw_sequence(
    draw: random.Random, networks: Sequence[Network], workers: int, changes: int
) -> list[State]:
    """Draw a fleet and changes of it, so that the engines can run in each state."""
    while True:
        machines = {
            f"w{number}": _draw_machine(draw, number, len(networks)) for number in range(workers)
        }
        mix = {network.name: 1 for network in networks}
        if len(networks) > 1:
            mix[networks[draw.randrange(len(networks))].name] = 3
        states = [State("first deployment", machines, mix)]
        if (best := best_deployment(networks, states[0])) is not None:
            break
    kinds = [each for each in CHANGES if len(networks) > 1 or each != "shift"]
    while len(states) <= changes:
        kind = draw.choice(kinds)
        state = _changed(draw, states, kind, len(networks))
        found = best_deployment(networks, state)
        if found is not None and (kind == "version" or found.routes != best.routes):
            states.append(state)
            kinds.remove(kind)
            best = found
    return states


def _draw_machine(draw: random.Random, number: int, engines: int) -> Machine:
    mbit_s = MBIT_S[0] * (MBIT_S[1] / MBIT_S[0]) ** draw.random()
    pace = round(draw.uniform(*PACES), 2)
    return Machine(pace, number % 2 == 0, engines * draw.randrange(*MEMORY_MB), round(mbit_s))


def _changed(draw: random.Random, states: Sequence[State], kind: str, engines: int) -> State:
    """Draw a change of a kind of the last state."""
    state = states[-1]
    machines, name = dict(state.machines), draw.choice(sorted(state.machines))
    if kind == "version":
        return replace(state, change="new version", version=state.version + 1)
    if kind == "shift":
        one, two = state.mix
        mix = {one: state.mix[two], two: state.mix[one]}
        shares = " : ".join(map(str, mix.values()))
        return replace(state, change=f"demand shifts to {shares}", mix=mix)
    before = machines.pop(name)
    text = f"{name} leaves"
    if kind == "join":
        machines[name] = before
        number = len({each for state in states for each in state.machines})
        name = f"w{number}"
        machines[name] = _draw_machine(draw, number, engines)
        text = f"{name} joins, pace {machines[name].pace}"
    elif kind == "slow down":
        factor = draw.choice((1.5, 2.0, 3.0))
        machines[name] = replace(before, pace=round(factor * before.pace, 2))
        text = f"{name} slows down {factor} x"
    elif kind == "lose memory":
        memory_mb = round(draw.uniform(*LESS_MB) * before.memory_mb)
        machines[name] = replace(before, memory_mb=memory_mb)
        text = f"{name} has {memory_mb} MB instead of {before.memory_mb}"
    elif kind == "change a link":
        factor = draw.choice((0.2, 0.35, 3.0))
        machines[name] = replace(before, mbit_s=round(factor * before.mbit_s))
        text = f"{name} has {machines[name].mbit_s:g} Mbit/s instead of {before.mbit_s:g}"
    return replace(state, change=text, machines=dict(sorted(machines.items())))


# --- the best of all deployments ------------------------------------------------------------


class _Deployments(NamedTuple):
    """Deployments of one engine.

    Attributes:
        loads: seconds that a query takes of each resource: worker, its link in and its link out.
        memory: bytes of each worker.
    """

    routes: list[Routes]
    loads: NDArray[np.float64]
    memory: NDArray[np.float64]


def best_deployment(networks: Sequence[Network], state: State) -> Best | None:
    """Return the best of all deployments by the true times; None if none is possible.

    The best one answers most queries per second if the engines are asked as in the mix.
    """
    total = sum(state.mix.values())
    found = [_deployments(network, state) for network in networks]
    shares = [state.mix[network.name] / total for network in networks]
    budgets = np.array([1e6 * each.memory_mb for each in state.machines.values()])
    if not all(each.routes for each in found):
        return None
    if len(found) == 1:
        [one] = found
        place = int(one.loads.max(axis=1).argmin())
        return Best({networks[0].name: one.routes[place]}, 1 / float(one.loads[place].max()))
    one, two = found
    best_s, best = np.inf, (0, 0)
    for begin in range(0, len(one.routes), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        busy = shares[0] * one.loads[part, np.newaxis] + shares[1] * two.loads
        fits = (one.memory[part, np.newaxis] + two.memory <= budgets).all(axis=2)
        seconds = np.where(fits, busy.max(axis=2), np.inf)
        if seconds.min() < best_s:
            row, column = divmod(int(seconds.argmin()), seconds.shape[1])
            best_s, best = float(seconds.min()), (begin + row, column)
    if best_s == np.inf:
        return None
    chosen = {
        network.name: each.routes[place]
        for network, each, place in zip(networks, found, best, strict=True)
    }
    return Best(chosen, 1 / best_s)


def _deployments(network: Network, state: State) -> _Deployments:
    """Return all sets of routes without a common worker that fit."""
    machines = state.machines
    by_workers: dict[frozenset[str], list[Route]] = {}
    for route in _all_routes(network, machines):
        by_workers.setdefault(frozenset(leg.worker for leg in route.legs), []).append(route)
    sets: list[Routes] = []
    _extend(sets, (), by_workers, frozenset(machines))
    numbers = {name: number for number, name in enumerate(machines)}
    loads = np.zeros((len(sets), 3 * len(machines)))
    memory = np.zeros((len(sets), len(machines)))
    for row, routes in enumerate(sets):
        busy = [_busy(network, route, machines) for route in routes]
        rates = [1 / max(map(max, each.values())) for each in busy]
        for route, each, rate in zip(routes, busy, rates, strict=True):
            for worker, seconds in each.items():
                place = 3 * numbers[worker]
                loads[row, place : place + 3] += np.array(seconds) * rate / sum(rates)
            for worker, first, last in route.legs:
                memory[row, numbers[worker]] += network.memory_bytes(first, last)
    return _Deployments(sets, loads, memory)


def _extend(
    found: list[Routes],
    chosen: Routes,
    by_workers: Mapping[frozenset[str], Sequence[Route]],
    free: frozenset[str],
) -> None:
    """Add all sets that have the chosen routes, and others behind them on free workers."""
    if chosen:
        found.append(chosen)
    least = min(leg.worker for leg in chosen[-1].legs) if chosen else ""
    for workers, routes in by_workers.items():
        if workers <= free and min(workers) > least:
            for route in routes:
                _extend(found, (*chosen, route), by_workers, free - workers)


def _all_routes(network: Network, machines: Mapping[str, Machine]) -> Iterator[Route]:
    """Yield all routes that fit: no worker can hold a whole engine."""
    end = len(network.seconds)
    for count in range(2, len(machines) + 1):
        for cuts in combinations(range(1, end), count - 1):
            ends = list(pairwise((0, *cuts, end)))
            for workers in permutations(machines, count):
                legs = zip(workers, ends, strict=True)
                if all(
                    network.memory_bytes(*stage) <= 1e6 * machines[worker].memory_mb
                    for worker, stage in zip(workers, ends, strict=True)
                ):
                    yield Route(tuple(Leg(worker, *stage) for worker, stage in legs))


def _busy(
    network: Network, route: Route, machines: Mapping[str, Machine]
) -> dict[str, tuple[float, float, float]]:
    """Return the seconds that a query takes of each worker, its link in and its link out."""
    return {
        worker: (
            sum(network.seconds_on(machines[worker])[first:last]),
            network.sizes[first] / (machines[worker].mbit_s * MBIT * PAYLOAD),
            network.sizes[last] / (machines[worker].mbit_s * MBIT * PAYLOAD),
        )
        for worker, first, last in route.legs
    }
