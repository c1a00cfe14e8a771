"""A problem of routes as arrays, in which workers that are alike are one group."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Final

import numpy as np

from synergai.core.routes.problem import HOST_BYTES, SESSION_PER_WEIGHT, RouteTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from synergai.core.routes.links import Links
    from synergai.core.routes.problem import RouteProblem, RouteWorker

MAX_SETS: Final = 256
"""Number of sets of workers that are considered: those of eight workers, or of more alike ones."""


class Tables:
    """Times of all stages and hops of a problem.

    Workers are alike if exchanging them changes neither times, budgets nor links. Of many workers,
    it keeps those that would run the whole engine fastest.

    Attributes:
        groups: names of workers that are alike.
        stages: seconds by the positions at which a stage ends and begins, and group; infinite if it
            is none or does not fit.
        hops: seconds by position, sending group and receiving group. The last group is the source
            of the queries. The result of a query that leaves returns from the sender.
        intervals: seconds until the next tensor can follow, by the same.
        units: what a member of each group adds to the number of a set of workers.
        counts: members by set of workers and group.
        members: all of them by set.
        joined: numbers of the sets that have a member of a group, by group; rows are filled up with
            the number of sets. A leg of a group that completes a set has a slot in it.
        senders: slots of the legs before those in `joined`, by the group of such a leg. Two
            slots are behind the others: that of no leg, and that of the source.
    """

    def __init__(self, problem: RouteProblem) -> None:
        workers = _promising(problem)
        hosts = [*(worker.name for worker in workers), problem.source]
        ways = _ways(problem.links, hosts)
        members = _kept(_alike(workers, ways))
        self.groups = [tuple(workers[index].name for index in group) for group in members]
        bases = np.array([len(group) + 1 for group in members])
        self.units = np.cumprod(bases) // bases
        self.counts = np.arange(bases.prod())[:, np.newaxis] // self.units % bases
        self.members = self.counts.sum(axis=1)
        self.joined, self.senders = _slots(self.counts, self.units)
        self.stages = _stages(problem, [workers[group[0]] for group in members])
        ends = [*(group[0] for group in members), len(workers)]
        between = ways[np.ix_(ends, ends)]
        for number, group in enumerate(members):
            if len(group) > 1:
                between[number, number] = ways[group[0], group[1]]
        latency, per_byte, interval_per_byte = np.moveaxis(between, -1, 0)
        sizes = np.array(problem.chain.sizes)[:, np.newaxis, np.newaxis]
        shares = np.array(problem.chain.shares or np.ones(len(sizes)))[:, np.newaxis, np.newaxis]
        hops = latency + per_byte * sizes
        results = hops[-1, :, -1]
        self.hops = shares * hops + (1 - shares) * (results[:, np.newaxis] - results)
        self.intervals = shares * interval_per_byte * sizes
        self.stages *= shares.transpose(1, 0, 2)


def _promising(problem: RouteProblem) -> list[RouteWorker]:
    """Return the workers in the order of the time that they would take alone."""

    def alone_s(worker: RouteWorker) -> float:
        inputs = problem.links.hop(problem.source, worker.name, problem.chain.sizes[0])
        outputs = problem.links.hop(worker.name, problem.source, problem.chain.sizes[-1])
        return RouteTimes((worker.seconds[0][-1],), (inputs, outputs)).seconds(problem.queries)

    workers = sorted(problem.workers, key=alone_s)
    # The best one that can be alone is kept, so that no worker alone beats the best route.
    best = next((each for each in workers if problem.fits(each, 0, problem.chain.end)), None)
    return sorted(workers, key=lambda worker: worker is not best)


def _ways(links: Links, hosts: Sequence[str]) -> NDArray[np.float64]:
    """Return latency, seconds per byte and interval per byte by pair of hosts."""
    ways = np.zeros((len(hosts), len(hosts), 3))
    for (row, source), (column, target) in permutations(enumerate(hosts), 2):
        way = links.way(source, target).values()
        per_byte = [1 / link.bytes_per_s for link in way]
        if way:
            latency_s = sum(link.latency_s for link in way)
            ways[row, column] = latency_s, sum(per_byte), max(per_byte)
    return ways


def _alike(workers: Sequence[RouteWorker], ways: NDArray[np.float64]) -> list[list[int]]:
    """Return the numbers of the workers in groups of those that are alike."""
    groups: list[list[int]] = []
    for number, worker in enumerate(workers):
        for group in groups:
            first = workers[group[0]]
            if (worker.budget_bytes, worker.seconds) == (first.budget_bytes, first.seconds):
                exchanged = np.arange(len(ways))
                exchanged[[number, group[0]]] = group[0], number
                if np.array_equal(ways[np.ix_(exchanged, exchanged)], ways):
                    group.append(number)
                    break
        else:
            groups.append([number])
    return groups


def _kept(groups: Sequence[list[int]]) -> list[list[int]]:
    """Return the most promising groups; the last one may lose members."""
    kept, sets = [], 1
    for group in groups:
        most = MAX_SETS // sets - 1
        if most < 1:
            break
        kept.append(group[:most])
        sets *= len(kept[-1]) + 1
    return kept


def _slots(
    counts: NDArray[np.int64], units: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sets that members of each group complete, and slots of the legs before."""
    none, groups = counts.shape
    sets = [np.flatnonzero(of_group) for of_group in counts.T]
    joined = np.full((groups, max(map(len, sets))), none)
    for group, of_group in enumerate(sets):
        joined[group, : len(of_group)] = of_group
    slots = np.full((groups + 1, none + 1), joined.size)
    slots[np.arange(groups)[:, np.newaxis], joined] = np.arange(joined.size).reshape(joined.shape)
    slots[:, none] = joined.size
    slots[groups, 0] = joined.size + 1
    before = np.where(joined < none, joined - units[:, np.newaxis], none)
    return joined, slots[:, before]


def _stages(problem: RouteProblem, workers: Sequence[RouteWorker]) -> NDArray[np.float64]:
    chain = problem.chain
    before, after = np.array(chain.weights_before), np.array(chain.weights_after)
    weights = before + after[:, np.newaxis] - before[-1]
    needed = HOST_BYTES + SESSION_PER_WEIGHT * weights
    empty = np.tri(chain.end + 1, dtype=bool)
    by_group = [
        np.where(empty | (needed > worker.budget_bytes), np.inf, worker.seconds)
        for worker in workers
    ]
    return np.ascontiguousarray(np.array(by_group).T)
