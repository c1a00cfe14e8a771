"""Chains of engines with the measured times of their stages, on one thread with ONNX Runtime.

The experiments with pipelines run one of them over `WORKERS` equal workers.
"""

from __future__ import annotations

import csv
from itertools import groupby, permutations
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from synergai.core.routes.links import Link, Links
from synergai.core.routes.problem import Chain, RouteProblem, RouteWorker
from synergai.domain import EngineName

if TYPE_CHECKING:
    from collections.abc import Sequence

FILE: Final = Path(__file__).parent.parent / "data" / "measured_chains.csv"
WORKERS: Final = 4
NETWORK: Final = EngineName("onnx_resnet50_op11")
LINK: Final = Link(1e9 / 8, 0.0005)


class Place(NamedTuple):
    """A place of a chain, and what was measured there: a row of the file.

    Attributes:
        tensor: the cut; ``inputs`` and ``outputs`` at the ends.
        head_ms: time of the part before it.
        tail_ms: time of the part behind it.
    """

    tensor: str
    size_bytes: int
    weights_before: int
    weights_after: int
    head_ms: float
    tail_ms: float


class MeasuredChain(NamedTuple):
    """A chain and its times.

    Attributes:
        seconds: time of one query in the stage between two places, as ``seconds[first][last]``.
    """

    chain: Chain
    seconds: tuple[tuple[float, ...], ...]


def measured_chains() -> dict[EngineName, MeasuredChain]:
    """Return the chains of all engines that were measured."""
    with FILE.open() as file:
        rows = list(csv.reader(file))[1:]
    return {
        EngineName(engine): _chain(
            EngineName(engine), [msgspec.convert(row[1:], Place, strict=False) for row in of_engine]
        )
        for engine, of_engine in groupby(rows, key=lambda row: row[0])
    }


def pipeline() -> RouteProblem:
    """Return a range of queries of one network over workers that are alike and linked in pairs."""
    chain, seconds = measured_chains()[NETWORK]
    names = [f"w{number}" for number in range(WORKERS)]
    return RouteProblem(
        chain=chain,
        workers=tuple(RouteWorker(name, seconds) for name in names),
        links=Links(dict.fromkeys(permutations(names, 2), LINK), default=LINK),
        queries=1000,
    )


def _chain(engine: EngineName, places: Sequence[Place]) -> MeasuredChain:
    whole_ms = places[-1].head_ms
    return MeasuredChain(
        Chain(
            engine=engine,
            sizes=tuple(place.size_bytes for place in places),
            weights_before=tuple(place.weights_before for place in places),
            weights_after=tuple(place.weights_after for place in places),
        ),
        # The head up to its end, less what is before its begin, and the cost of the cut there.
        tuple(
            tuple(max(0.0, last.head_ms + first.tail_ms - whole_ms) / 1000 for last in places)
            for first in places
        ),
    )
