"""Invariants of the catalogue for any offers of workers, in any order of coming and going."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.fleet.catalogue import Catalogue
from gateway.fleet.descriptions import CommittedDescription
from synergai.domain import Engine, EngineName, Variant, WorkerId
from synergai.errors import SynergaiError
from tests.unit.gateway.conftest import ENGINE

WORKERS = st.sampled_from([WorkerId(name) for name in ("w1", "w2", "w3")])
OFFERS = st.sampled_from(
    [
        *(replace(ENGINE, digest=digest * 64) for digest in "ab"),
        replace(ENGINE, digest="a" * 64, postprocess="classes"),
        replace(ENGINE, fault="truncated"),
        replace(ENGINE, fault="it is being inspected", inputs=(), outputs=(), pending=True),
    ]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), WORKERS, OFFERS),
        st.tuples(st.just("leave"), WORKERS, st.just(ENGINE)),
        st.tuples(st.just("restart"), WORKERS, st.just(ENGINE)),
    ),
    max_size=20,
)


class Fleet:
    """Workers, and a gateway that may restart; a client after every step.

    Attributes:
        held: engine that each worker serves, or served until it left, unless it offers another.
        resolved: engine of each connected worker, as the gateway treats it.
        seen: what the client saw last.
    """

    def __init__(self) -> None:
        self.recorded: dict[EngineName, CommittedDescription] = {}
        self.held: dict[WorkerId, Engine] = {}
        self.resolved: dict[WorkerId, Engine] = {}
        self.seen: Engine | None = None
        self.restart()

    def restart(self) -> None:
        self.resolved.clear()
        self.catalogue = Catalogue(
            self.recorded,
            committed=self.recorded.copy(),
            on_commit=self.recorded.__setitem__,
        )

    def take(self, step: str, worker_id: WorkerId, engine: Engine) -> None:
        match step:
            case "offer":
                if not engine.fault and engine != self.held.get(worker_id):
                    self.held.pop(worker_id, None)
                self.resolved |= self.catalogue.update(worker_id, engine)
            case "leave":
                self.resolved.pop(worker_id, None)
                for engines in self.catalogue.remove_worker(worker_id):
                    self.resolved |= engines
            case _:
                self.restart()

    def ask(self) -> Engine | None:
        try:
            return self.catalogue.find(ENGINE.name)
        except SynergaiError:
            return None


@given(STEPS)
def test_clients_see_one_engine_until_all_that_served_it_offer_another(
    steps: list[tuple[str, WorkerId, Engine]],
) -> None:
    fleet = Fleet()
    for step in steps:
        fleet.take(*step)
        served = [engine for engine in fleet.resolved.values() if not engine.fault]
        found = fleet.ask()
        assert (found is None) == (not served)
        if found is None:
            continue
        assert all(engine == found for engine in served)
        if fleet.seen not in (None, found):
            assert fleet.seen not in fleet.held.values()
        fleet.seen = found
        fleet.held |= {each: engine for each, engine in fleet.resolved.items() if not engine.fault}


FAMILIES = st.sampled_from(
    [
        replace(ENGINE, variants=tuple(Variant(name=name, digest=digest) for name, digest in each))
        for each in (
            [("full", "a"), ("int8", "b")],
            [("full", "a"), ("int8", "x")],
            [("int8", "x")],
            [("full", "c"), ("p25", "d")],
            [("full", "")],
        )
    ]
)


@given(st.lists(st.tuples(st.booleans(), WORKERS, FAMILIES), max_size=20), st.booleans())
def test_served_variants_of_a_name_are_one_file(
    steps: list[tuple[bool, WorkerId, Engine]], asks: bool
) -> None:
    catalogue = Catalogue()
    offered: dict[WorkerId, Engine] = {}
    resolved: dict[WorkerId, Engine] = {}
    for leaves, worker_id, engine in steps:
        if leaves:
            offered.pop(worker_id, None)
            resolved.pop(worker_id, None)
            for engines in catalogue.remove_worker(worker_id):
                resolved |= engines
        else:
            offered[worker_id] = engine
            resolved |= catalogue.update(worker_id, engine)
        served: dict[str, set[str]] = {}
        for each in resolved.values():
            for variant in () if each.fault else each.variants:
                served.setdefault(variant.name, set()).add(variant.digest)
        assert all(len(digests - {""}) <= 1 for digests in served.values())
        # Each variant that a worker has is served by one, unless an absent one served another file.
        names = {variant.name for each in offered.values() for variant in each.variants}
        assert served.keys() <= names
        assert asks or served.keys() == names
        for worker, each in resolved.items():
            unused = [conflict.variant for conflict in each.unused_variants]
            if not each.fault:
                assert {
                    variant.name for variant in (*each.variants, *offered[worker].variants)
                } == {
                    *unused,
                    *(variant.name for variant in each.variants),
                }
        if asks and served:
            assert {each.name for each in catalogue.find(ENGINE.name).variants} == served.keys()
