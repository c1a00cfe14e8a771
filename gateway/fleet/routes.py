"""The routes of queries through engines: search, and what their stages answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from synergai.core.route import ExitRates, Route
from synergai.errors import InvalidInput
from synergai.names import split_version
from synergai.wire.stages import has_left, parse_stage_response
from synergai.wire.validation import DROP, LEAVE, STAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gateway.fleet.catalogue import Catalogue
    from synergai.domain import Engine, EngineName
    from synergai.oip.inference_pb2 import ModelInferResponse
    from synergai.wire.request_codec import Buffer

    Outputs: TypeAlias = tuple[ModelInferResponse, Sequence[Buffer]]


class Routes:
    """Finds the routes through engines.

    Attributes:
        rates: those of all exits.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.rates = ExitRates()

    def find(
        self,
        engine: EngineName,
        floor: float,
        seconds: Callable[[Engine], float],
        rate: Callable[[Engine], float],
    ) -> Route | None:
        """Return the route that is expected to be the fastest; None if a query just runs whole."""
        catalogue = self.catalogue
        chains, early = catalogue.open_chains(engine), catalogue.early_stages(engine)
        if not (chains or early):
            return None
        whole = catalogue.whole(engine)
        if engine in catalogue.stages.preferred:
            routes = list(_routes(None, chains, (), floor))
        else:
            routes = list(_routes(whole, chains, early, floor))
        if not routes and whole is not None:
            return None
        if not routes and chains:
            raise _floor_not_reached(engine, floor, max(map(accuracy_of, chains)))
        best = min(routes, key=lambda route: route.seconds(seconds, rate), default=None)
        return None if best is None or best.engines == (whole,) else best

    def read_outputs(
        self, route: Route, position: int, response: Buffer, *, held: bool, asked: str
    ) -> Outputs | None:
        """Return what a stage passes on; None if its response answers the query.

        The rate of its exit is learned, unless the query was `asked` to leave there.

        Raises:
            InternalError: a worker sent something else.
        """
        if route.is_last(position):
            return None
        engine = route.engines[position]
        message, contents = parse_stage_response(engine, response, held=held)
        left = has_left(message)
        if route.may_leave(position) and asked != LEAVE:
            self.rates.observe(engine, left=left)
        return None if left else (message, contents)


def asked_of_exit(route: Route, position: int) -> str:
    """Return what a request asks of the exit of its stage; see `EXIT`; empty for nothing."""
    if route.engines[position].exit is not None and not route.may_leave(position):
        return STAY
    return DROP if route.begins_again(position + 1) else ""


def _routes(
    whole: Engine | None,
    chains: Sequence[tuple[Engine, ...]],
    early: tuple[Engine, ...],
    floor: float,
) -> Iterator[Route]:
    if whole is not None:
        yield Route((whole,), floor)
        for count, stage in enumerate(early, 1):
            if stage.stage_of not in whole.digests or not Route((stage,), floor).may_leave(0):
                break
            yield Route((*early[:count], whole), floor)
    for chain in chains:
        if (whole is None or Route(chain).has_exits) and accuracy_of(chain) >= floor:
            yield Route(chain, floor)


def accuracy_of(chain: Sequence[Engine]) -> float:
    """Return the accuracy of an engine without exits, as its stages with exits have it; or 0.

    Of a chain that ends with the whole engine, it is 1.
    """
    if chain and not chain[-1].stage_of:
        return 1.0
    return max((each.exit.whole_accuracy for each in chain if each.exit), default=0.0)


def _floor_not_reached(engine: EngineName, floor: float, accuracy: float) -> InvalidInput:
    name, _ = split_version(engine)
    if accuracy:
        return InvalidInput(
            f"engine {name!r} does not reach an accuracy of {floor:g}: in stages, it has "
            f"{accuracy:.4g}"
        )
    return InvalidInput(
        f"the accuracy of engine {name!r} in stages is not known, so a floor of {floor:g} cannot "
        "be guaranteed; make them with 'synergai engines exits', or omit the floor"
    )
