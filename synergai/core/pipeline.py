"""The pipeline: moves queries through the stages of a route. Events in, commands out.

Events are the methods of `Pipeline`; they return the commands to execute, in order. The run of a
query in a stage is a *visit*, and a query is in one of three states::

    visiting --answered, it goes on--> visiting the next stage
    visiting --answered by the last stage, or finally--> done
    visiting --lost--> visiting an earlier stage
    visiting the first stage --route changed--> visiting the first stage of the other route
    done --all queries that began before it are done--> recorded, and forgotten

A query that its first stage has answered ends on the route on which it began.

Invariants after every event:

1. A query that has begun and is not done has exactly one visit: nothing is ready twice at once. An
   answer to a visit that has ended changes nothing but that its tensors are dropped.
2. Each query is recorded once, when it is done, in the order in which they began.
3. Tensors that a worker holds are dropped once, as soon as no visit can need them.
4. After a loss, a query visits the last stage whose inputs there still are, `most_losses` times at
   most. The next loss fails the pipeline, which closes.
5. The state has one entry for each query that has begun and is not recorded.
6. A closed pipeline has forgotten all queries.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from synergai.core.route import Route
    from synergai.domain import WorkerId


class HeldTensors(Struct, frozen=True):
    """Outputs of a stage that a worker holds, and where others pull them by their token."""

    worker_id: WorkerId
    token: str
    size: int
    address: str = ""
    certificate: bytes = b""


class Visit(Struct, frozen=True):
    """The run of a query in a stage; with its tensors, if a worker holds them."""

    id: int
    query: int
    tensors: HeldTensors | None


class Answer(Struct, frozen=True):
    """The answer to a visit.

    Attributes:
        is_final: it answers the query, which has left at an exit or failed.
        tensors: the outputs, if the worker holds them.
    """

    visit: int
    is_final: bool
    tensors: HeldTensors | None = None


# --- commands -------------------------------------------------------------------------------


class Ready(Struct, frozen=True):
    """Run visits in a stage; those of the first stage of former routes end.

    Attributes:
        number: that of the route.
    """

    number: int
    position: int
    visits: Sequence[Visit]


class Record(Struct, frozen=True):
    """Record the results of adjacent queries."""

    first: int
    count: int


class Drop(Struct, frozen=True):
    """Let the worker drop tensors."""

    tensors: HeldTensors


class Fail(Struct, frozen=True):
    """Fail: the tensors of a query were lost too often, or its inputs with them."""

    query: int
    losses: int


Command: TypeAlias = Ready | Record | Drop | Fail


@dataclass(eq=False, slots=True)
class _Query:
    """A query that is not recorded.

    Attributes:
        visit: id of its visit; 0 once it is done.
        held: tensors of the stages up to its own that may still be needed.
    """

    index: int
    route: Route
    number: int = 0
    visit: int = 0
    position: int = 0
    losses: int = 0
    held: list[HeldTensors | None] = field(default_factory=list)


class Pipeline:
    """Moves queries through stages.

    Args:
        route: that of queries that begin; its number is 0.
        most_losses: losses that a query survives.
        keeps_inputs: there are the inputs of all stages until the query is done, so that the stage
            before a loss runs again; otherwise only those of the first stage.
    """

    def __init__(self, route: Route, most_losses: int, *, keeps_inputs: bool) -> None:
        self._route = route
        self._number = 0
        self._most_losses = most_losses
        self._keeps_inputs = keeps_inputs
        self._visited = 0
        self._order: deque[_Query] = deque()
        self._visits: dict[int, _Query] = {}
        self._commands: list[Command] = []

    # --- events -----------------------------------------------------------------------------

    def route_changed(self, route: Route) -> list[Command]:
        """Let queries in the first stage, and those that begin, take another route.

        Its number is one above that of the former one.
        """
        self._route = route
        self._number += 1
        waiting = [query for query in self._order if query.visit and not query.position]
        for query in waiting:
            self._end_visit(query.visit)
        self._begin(waiting)
        return self._take()

    def begun(self, first: int, count: int) -> list[Command]:
        """Let adjacent queries begin."""
        queries = [_Query(index, self._route) for index in range(first, first + count)]
        self._order.extend(queries)
        self._begin(queries)
        return self._take()

    def answered(self, answers: Iterable[Answer]) -> list[Command]:
        """Let queries go on to the next stage, or record them."""
        going: dict[tuple[int, int], list[_Query]] = {}
        for answer in answers:
            query = self._end_visit(answer.visit)
            if query is None:
                self._drop([answer.tensors])
                continue
            if not self._keeps_inputs:
                self._drop(query.held)
                query.held = []
            behind = query.position + 1
            if answer.is_final or query.route.is_last(query.position):
                self._drop([*query.held, answer.tensors])
                query.held = []
                continue
            if query.route.begins_again(behind):
                self._drop([answer.tensors])
                query.held.append(None)
            else:
                query.held.append(answer.tensors)
            going.setdefault((query.number, behind), []).append(query)
        for (_, position), queries in going.items():
            self._visit(queries, position)
        self._record()
        return self._take()

    def lost(self, visit: int) -> list[Command]:
        """Let a query whose tensors are lost run again, unless that has been too often."""
        query = self._end_visit(visit)
        if query is None:
            return []
        lost = query.held.pop()
        self._drop([lost])
        query.losses += 1
        if query.losses > self._most_losses or (self._keeps_inputs and lost is None):
            return [*self.closed(), Fail(query.index, query.losses)]
        if self._keeps_inputs and query.position > 1:
            self._visit([query], query.position - 1)
        else:
            self._begin([query])
        return self._take()

    def closed(self) -> list[Command]:
        """Forget all queries, since nothing more is wanted of them."""
        for query in self._order:
            self._drop(query.held)
        self._order.clear()
        self._visits.clear()
        return self._take()

    # --- steps ------------------------------------------------------------------------------

    def _take(self) -> list[Command]:
        commands, self._commands = self._commands, []
        return commands

    def _begin(self, queries: Sequence[_Query]) -> None:
        """Let queries visit the first stage, some of them perhaps once more."""
        for query in queries:
            query.number, query.route, query.held = self._number, self._route, [None]
        if queries:
            self._visit(queries, 0)

    def _visit(self, queries: Sequence[_Query], position: int) -> None:
        visits = []
        for query in queries:
            self._visited += 1
            query.visit, query.position = self._visited, position
            self._visits[query.visit] = query
            visits.append(Visit(query.visit, query.index, query.held[-1]))
        self._commands.append(Ready(queries[0].number, position, visits))

    def _end_visit(self, visit: int) -> _Query | None:
        """Return the query of a visit, which ends; None if it has ended before."""
        query = self._visits.pop(visit, None)
        if query is not None:
            query.visit = 0
        return query

    def _drop(self, tensors: Iterable[HeldTensors | None]) -> None:
        self._commands += (Drop(each) for each in tensors if each is not None)

    def _record(self) -> None:
        """Record the queries that are done up to the first one that is not."""
        done: list[Record] = []
        while self._order and not self._order[0].visit:
            index = self._order.popleft().index
            if done and index == done[-1].first + done[-1].count:
                done[-1] = Record(done[-1].first, done[-1].count + 1)
            else:
                done.append(Record(index, 1))
        self._commands += done
