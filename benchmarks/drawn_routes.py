"""Drawn problems of routes: chains, unlike workers, links and budgets by seed."""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from synergai.core.routes.links import GATEWAY, Link, Links
from synergai.core.routes.problem import (
    HOST_BYTES,
    SESSION_PER_WEIGHT,
    Chain,
    RouteProblem,
    RouteWorker,
)
from synergai.domain import EngineName

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

MBIT = 1e6 / 8
ENGINE = EngineName("drawn")


def drawn_problem(
    seed: int, *, cuts: int, workers: int, queries: int = 1, alike: float = 0.3
) -> RouteProblem:
    """Draw a problem.

    A worker takes 1 to 8 times as long as the fastest one, and up to 50% more or less in each
    layer. Links have 20 to 1000 Mbit/s and up to 10 ms. Some workers cannot hold the whole engine,
    are not linked to each other, or are alike.

    Args:
        alike: share of the workers that are of the kind of another one.
    """
    generator = np.random.default_rng(seed)
    chain = _chain(generator, cuts)
    layers = generator.gamma(1.0, size=cuts + 1)
    layers *= generator.uniform(0.01, 0.1) / layers.sum()
    # Every worker is of one of these kinds.
    kinds = [_kind(generator, chain, layers) for _ in range(workers)]
    of = [
        int(generator.integers(workers)) if generator.random() < alike else number
        for number in range(workers)
    ]
    names = [f"w{number}" for number in range(workers)]
    # 0 is the kind of the gateway. Workers of a kind have the same links.
    kind_of = {GATEWAY: 0, **{name: 1 + of[number] for number, name in enumerate(names)}}
    between = {pair: _link(generator) for pair in permutations(range(workers + 1), 2)}
    links = {}
    for source, target in permutations(kind_of, 2):
        pair = (kind_of[source], kind_of[target])
        if pair in between and (0 in pair or sum(pair) % 3):
            links[source, target] = between[pair]
    return RouteProblem(
        chain=chain,
        workers=tuple(RouteWorker(name, *kinds[of[number]]) for number, name in enumerate(names)),
        links=Links(links, default=_link(generator)),
        source=str(generator.choice(list(kind_of))),
        queries=queries,
    )


def _chain(generator: Generator, cuts: int) -> Chain:
    sizes = (10 ** generator.uniform(4, 6.5, size=cuts + 2)).astype(int)
    weights = np.concatenate([[0], np.cumsum(10 ** generator.uniform(3, 7, size=cuts + 1))])
    return Chain(
        engine=ENGINE,
        sizes=tuple(map(int, sizes)),
        weights_before=tuple(map(int, weights)),
        weights_after=tuple(int(weights[-1]) - int(before) for before in weights),
    )


def _kind(
    generator: Generator, chain: Chain, layers: NDArray[np.float64]
) -> tuple[tuple[tuple[float, ...], ...], float]:
    """Draw the times of stages and the budget of a kind of worker."""
    mine = layers * generator.uniform(1, 8) * generator.uniform(0.5, 1.5, size=len(layers))
    ends = np.concatenate([[0.0], np.cumsum(mine)])
    cost_s = generator.uniform(0, 0.02) * ends[-1]
    seconds = np.maximum(ends[np.newaxis, :] - ends[:, np.newaxis], 0.0)
    seconds[1:] += cost_s
    whole = HOST_BYTES + SESSION_PER_WEIGHT * chain.weights(0, chain.end)
    budget = math.inf if generator.random() < 0.5 else whole * float(generator.uniform(0.5, 1.2))
    return tuple(map(tuple, seconds.tolist())), budget


def _link(generator: Generator) -> Link:
    mbit_s = float(10 ** generator.uniform(math.log10(20), 3))
    return Link(mbit_s * MBIT, float(generator.uniform(0, 0.01)))
