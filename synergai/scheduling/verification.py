"""Selection of answers to compare with those of another worker, and conclusions from them.

Answers of honest workers differ once in a while: a class flips where two are equally likely, a box
appears at the threshold. A single false answer therefore proves nothing. The evidence against a
worker is the cumulative sum of log-likelihood ratios between a worker of which a share `FALSE` of
the answers is false, and one of which the share `HONEST` is (E. S. Page, "Continuous inspection
schemes", Biometrika 41, 1954). An honest worker reaches `PROOF` less than once in a million
comparisons, however long it has served, and a worker that becomes faulty later is found as quickly
as one that always was.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from synergai.domain import WorkerId

HONEST: Final = 0.001
"""Greatest share of answers of an honest worker that differ from those of the majority."""
FALSE: Final = 0.02
"""Share of false answers that is found the soonest; from about a third of it on, any is found."""
PROOF: Final = math.log(1e6)
"""Evidence that proves a worker to answer falsely."""
AGAINST: Final = math.log(FALSE / HONEST)
"""Evidence of one false answer."""
IN_FAVOUR: Final = math.log((1 - FALSE) / (1 - HONEST))
"""Evidence of one right answer; negative."""
MAX_WORKERS: Final = 4096
"""Workers whose evidence is kept; it outlasts their connections."""


class Sampler:
    """Selection of a random share of all answers.

    Instead of drawing a number for each answer, it draws how many to leave out until the next one.

    Args:
        share: from 0 to 1.
        uniform: returns independent random numbers, at least 0 and less than 1; a worker must not
            be able to predict them.
    """

    def __init__(self, share: float, uniform: Callable[[], float]) -> None:
        self._share = share
        self._uniform = uniform
        self._left_out = self._draw()

    def take(self, answers: int) -> Sequence[int]:
        """Return which of the next `answers` answers to compare."""
        if self._left_out >= answers:
            self._left_out -= answers
            return ()
        taken: list[int] = []
        while self._left_out < answers:
            taken.append(int(self._left_out))
            self._left_out += 1 + self._draw()
        self._left_out -= answers
        return taken

    def _draw(self) -> float:
        if self._share <= 0.0:
            return math.inf
        if self._share >= 1.0:
            return 0
        return math.floor(math.log1p(-self._uniform()) / math.log1p(-self._share))


@dataclass(slots=True)
class Standing:
    """Evidence from comparisons about a worker.

    Attributes:
        compared: answers that were compared, with a clear outcome.
        false: those of them that were false.
        disputed: further answers that differed from another worker's, and none could decide.
        evidence: how much speaks for its answering falsely; 0 if nothing does.
    """

    compared: int = 0
    false: int = 0
    disputed: int = 0
    evidence: float = 0.0

    @property
    def is_proof(self) -> bool:
        """Whether the worker is proved to answer falsely."""
        return self.evidence >= PROOF


class Standings:
    """The standing of each worker."""

    def __init__(self) -> None:
        self._by_worker: OrderedDict[WorkerId, Standing] = OrderedDict()

    def get(self, worker_id: WorkerId) -> Standing | None:
        """Return a worker's standing; None if none of its answers was compared."""
        return self._by_worker.get(worker_id)

    def is_suspect(self, worker_id: WorkerId) -> bool:
        """Return whether something speaks for false answers, so that all are to be compared."""
        standing = self._by_worker.get(worker_id)
        return standing is not None and standing.evidence > 0.0

    def right(self, worker_id: WorkerId) -> None:
        """Record an answer that another worker has confirmed."""
        standing = self._standing(worker_id)
        standing.compared += 1
        standing.evidence = max(0.0, standing.evidence + IN_FAVOUR)

    def false(self, worker_id: WorkerId) -> Standing:
        """Record a false answer; return the worker's standing."""
        standing = self._standing(worker_id)
        standing.compared += 1
        standing.false += 1
        standing.evidence += AGAINST
        return standing

    def disputed(self, worker_id: WorkerId) -> int:
        """Record an answer that differs from another one, undecided; return how many there were."""
        standing = self._standing(worker_id)
        standing.disputed += 1
        return standing.disputed

    def forget(self, worker_id: WorkerId) -> None:
        """Let a worker start again."""
        self._by_worker.pop(worker_id, None)

    def _standing(self, worker_id: WorkerId) -> Standing:
        standing = self._by_worker.get(worker_id)
        if standing is None:
            if len(self._by_worker) >= MAX_WORKERS:
                self._by_worker.popitem(last=False)
            standing = self._by_worker[worker_id] = Standing()
        self._by_worker.move_to_end(worker_id)
        return standing
