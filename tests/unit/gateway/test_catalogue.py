import asyncio

import pytest
from msgspec.structs import replace

from gateway.fleet.catalogue import MAX_ABSENT, Catalogue
from gateway.fleet.descriptions import CommittedDescription, Description
from synergai.domain import Engine, EngineName, TensorSpec, Variant, WorkerId
from synergai.errors import EngineNotFound, Unavailable

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")


def serving(*engines: Engine) -> Catalogue:
    """Return a catalogue of workers of which each serves an engine."""
    catalogue = Catalogue()
    for worker_id, engine in zip((W1, W2), engines, strict=False):
        catalogue.update(worker_id, engine)
    return catalogue


def pending(engine: Engine) -> Engine:
    return replace(engine, inputs=(), outputs=(), fault="it is being inspected", pending=True)


def test_engine_is_found_while_a_worker_serves_it(engine: Engine) -> None:
    catalogue = Catalogue([EngineName("earlier")])
    with pytest.raises(EngineNotFound):
        catalogue.find("echo")
    with pytest.raises(Unavailable):  # of an earlier run
        catalogue.find("earlier")
    catalogue.update(W1, engine)
    assert catalogue.find("echo") == engine
    catalogue.remove_worker(W1)
    with pytest.raises(Unavailable):
        catalogue.find("echo")
    catalogue.check_known("echo")


def family(engine: Engine, **digests: str) -> Engine:
    variants = tuple(Variant(name=name, digest=digest) for name, digest in digests.items())
    return replace(engine, digest=variants[0].digest, variants=variants)


def names(engine: Engine) -> list[str]:
    return [each.name for each in engine.variants]


def test_worker_with_another_file_of_a_variant_serves_the_rest_of_the_family(
    engine: Engine,
) -> None:
    catalogue = serving(family(engine, full="a", int8="b"))
    resolved = catalogue.update(W2, family(engine, int8="x", full="a", p25="c"))
    assert names(resolved[W1]) == ["full", "int8"]
    assert (names(resolved[W2]), resolved[W2].digest) == (["full", "p25"], "a")
    [unused] = resolved[W2].unused_variants
    assert unused.variant == "int8"
    assert "a file of SHA-256 x… instead of b…" in unused.reason
    assert not resolved[W2].fault
    assert [each.digest for each in catalogue.find("echo").variants] == ["a", "b", "c"]
    [conflict] = catalogue.conflicts
    assert conflict[:5] == (W2, ECHO, "int8", "x", "b")


def test_file_of_a_variant_is_free_once_no_worker_has_it(engine: Engine) -> None:
    catalogue = serving(family(engine, full="a", int8="b"), family(engine, full="a", int8="x"))
    catalogue.find("echo")
    assert names(catalogue.update(W1, family(engine, full="a"))[W2]) == ["full", "int8"]
    assert not list(catalogue.conflicts)
    assert names(catalogue.update(W1, family(engine, full="a", int8="b"))[W1]) == ["full"]
    catalogue.withdraw(W2, ECHO)
    assert names(catalogue.find("echo")) == ["full", "int8"]


def test_engine_gets_and_loses_variants_once_all_workers_have_changed(engine: Engine) -> None:
    plain, variants = replace(engine, digest="a"), family(engine, full="a", int8="b")
    catalogue = serving(plain, plain)
    for offer, difference in ((variants, "it has variants"), (plain, "it has no variants")):
        before = catalogue.find("echo")
        assert difference in catalogue.update(W1, offer)[W1].fault
        assert catalogue.find("echo") == before
        resolved = catalogue.update(W2, offer)
        assert not any(each.fault for each in resolved.values())
        assert catalogue.find("echo") == offer


def test_engine_with_another_interface_is_faulty(engine: Engine) -> None:
    catalogue = serving(engine)
    other = replace(engine, inputs=(TensorSpec("z", "INT8", (1,)),))
    assert "differs" in catalogue.update(W2, other)[W2].fault
    assert catalogue.find("echo") == engine


# --- different engines of one name --------------------------------------------------------------

ECHO = EngineName("echo")


@pytest.fixture
def other(engine: Engine) -> Engine:
    """Return the engine with another file."""
    return replace(engine, digest="b" * 64)


@pytest.fixture
def engine(engine: Engine) -> Engine:
    return replace(engine, digest="a" * 64)


def faults(engines: dict[WorkerId, Engine]) -> set[WorkerId]:
    return {worker_id for worker_id, engine in engines.items() if engine.fault}


def test_worker_with_another_file_does_not_serve_the_engine(engine: Engine, other: Engine) -> None:
    catalogue = serving(engine)
    assert faults(catalogue.update(W3, other)) == {W3}
    [conflict] = catalogue.conflicts
    assert conflict[:5] == (W3, "echo", "", "b" * 64, "a" * 64)
    assert conflict.difference == "a file of SHA-256 bbbbbbbbbbbb… instead of aaaaaaaaaaaa…"


def test_worker_connected_the_longest_decides_until_a_client_has_asked(
    engine: Engine, other: Engine
) -> None:
    catalogue = serving(pending(engine), other)
    # The inspection of the first took longer.
    assert faults(catalogue.update(W1, engine)) == {W2}


def test_worker_that_changes_its_engine_goes_before_one_that_waited(
    engine: Engine, other: Engine
) -> None:
    catalogue = Catalogue()
    newer = replace(engine, postprocess="classes")
    catalogue.update(W2, pending(engine))
    catalogue.update(W1, engine)
    catalogue.find("echo")
    assert faults(catalogue.update(W2, other)) == {W2}
    assert faults(catalogue.update(W1, newer)) == {W2}
    assert catalogue.find("echo") == newer


class Recorded(dict[EngineName, CommittedDescription]):
    """The journal's record of committed descriptions."""

    def catalogue(self) -> Catalogue:
        """Return the catalogue of a gateway that has just started."""
        return Catalogue(self, committed=self.copy(), on_commit=self.__setitem__)


@pytest.mark.parametrize("order", [(W1, W2), (W2, W1)])
def test_committed_description_survives_a_restart_in_any_order_of_arrival(
    engine: Engine, other: Engine, order: tuple[WorkerId, WorkerId]
) -> None:
    recorded = Recorded()
    catalogue = recorded.catalogue()
    catalogue.update(W1, engine)
    assert not recorded
    catalogue.find("echo")
    assert recorded[ECHO] == CommittedDescription(description=Description.of(engine), holders=(W1,))
    catalogue = recorded.catalogue()
    for worker_id in order:
        resolved = catalogue.update(worker_id, {W1: engine, W2: other}[worker_id])
        assert W1 not in faults(resolved)
    assert faults(resolved) == {W2}
    assert catalogue.find("echo") == engine


def test_engine_of_an_absent_worker_stays_in_service_until_it_is_forgotten(
    engine: Engine, other: Engine
) -> None:
    recorded = Recorded()
    catalogue = recorded.catalogue()
    catalogue.update(W1, engine)
    catalogue.find("echo")
    catalogue.remove_worker(W1)
    assert faults(catalogue.update(W2, other)) == {W2}
    catalogue = recorded.catalogue()
    assert faults(catalogue.update(W2, other)) == {W2}
    with pytest.raises(
        Unavailable, match="differs: to use that, run 'synergai engines forget echo"
    ):
        catalogue.find("echo")
    catalogue.check_known("echo")
    assert catalogue.forget("echo") == {W2: other}
    assert catalogue.find("echo") == other
    assert recorded[ECHO].description == Description.of(other)
    assert faults(catalogue.update(W1, engine)) == {W1}


def test_version_of_the_store_goes_before_others(engine: Engine, other: Engine) -> None:
    stored: set[str] = set()
    catalogue = Catalogue(stored=lambda _: stored)
    catalogue.update(W1, engine)
    catalogue.find("echo")
    stored.add(other.digest)
    assert catalogue.review() == [{W1: engine}]  # no worker has fetched it
    resolved = catalogue.update(W2, other)
    assert faults(resolved) == {W1}
    assert "not those of the store" in resolved[W1].fault
    assert catalogue.find("echo") == other
    stored.clear()
    assert [faults(each) for each in catalogue.review()] == [{W1}]


def test_worker_that_serves_no_version_of_the_store_does_not_come_first(
    engine: Engine, other: Engine
) -> None:
    catalogue = Catalogue(stored=lambda _: {other.digest})
    assert faults(catalogue.update(W1, engine)) == {W1}
    assert faults(catalogue.update(W2, other)) == {W1}
    assert faults(catalogue.update(W2, replace(other, fault="truncated"))) == {W1, W2}


def test_withdrawn_engine_does_not_count(engine: Engine, other: Engine) -> None:
    catalogue = serving(engine)
    catalogue.find("echo")
    catalogue.update(W2, other)
    assert catalogue.withdraw(W1, ECHO) == {W2: other}
    assert catalogue.withdraw(W1, ECHO) == {}


def test_unknown_engine_cannot_be_forgotten() -> None:
    with pytest.raises(EngineNotFound):
        Catalogue().forget("echo")


# --- waiting for an inspection ----------------------------------------------------------------


async def start_waiting(catalogue: Catalogue, count: int = 1) -> list[asyncio.Task[None]]:
    """Start tasks that wait for the inspection of ``echo``."""
    waiting = [asyncio.create_task(catalogue.wait_inspected("echo")) for _ in range(count)]
    await asyncio.sleep(0)
    return waiting


async def test_cancelled_waiter_leaves_the_others_waiting(engine: Engine) -> None:
    catalogue = serving(pending(engine))
    cancelled, other = await start_waiting(catalogue, 2)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    assert not other.done()
    catalogue.update(W1, engine)
    await other


def test_engine_that_no_worker_can_run_is_dropped(engine: Engine) -> None:
    catalogue = serving(engine)
    assert not catalogue.drop(ECHO)
    catalogue.update(W1, pending(engine))
    assert not catalogue.drop(ECHO)
    catalogue.update(W1, replace(engine, fault="it is gone"))
    catalogue.forget(ECHO)
    assert catalogue.drop(ECHO)
    assert list(catalogue.known_engines()) == []
    with pytest.raises(EngineNotFound):
        catalogue.find(ECHO)
    catalogue.update(W1, engine)
    assert catalogue.find(ECHO) == engine


def test_engine_that_the_caller_may_not_see_is_not_suggested() -> None:
    catalogue = Catalogue([EngineName("resnet50")], suggests=lambda _: False)
    with pytest.raises(EngineNotFound, match=r"'resnet5'$"):
        catalogue.find("resnet5")


def test_engine_that_no_worker_serves_now_is_suggested_only_if_its_name_is_similar(
    engine: Engine,
) -> None:
    catalogue = Catalogue([EngineName("resnet50")])
    catalogue.update(W1, engine)
    with pytest.raises(EngineNotFound, match=r"; there are 'echo'$"):
        catalogue.find("absent")
    with pytest.raises(EngineNotFound, match=r"; did you mean 'resnet50'\?$"):
        catalogue.find("resnet5")


def test_latest_of_too_many_engines_without_a_worker_are_forgotten(
    engine: Engine,
) -> None:
    catalogue = Catalogue([EngineName("profiled")])
    catalogue.update(W1, engine)
    names = [EngineName(f"made-up-{number}") for number in range(MAX_ABSENT + 3)]
    for name in names:
        catalogue.update(W2, replace(engine, name=name))
    catalogue.find(names[-1])  # a client has asked for it
    catalogue.unload(names[-2])
    assert catalogue.forget_surplus() == []
    catalogue.remove_worker(W2)
    assert catalogue.forget_surplus() == [names[-4], names[-3]]
    assert catalogue.forget_surplus() == []
    catalogue.check_known("profiled")
    catalogue.check_known(names[-1])
    catalogue.check_known("echo")
    with pytest.raises(EngineNotFound):
        catalogue.find(names[-3])
