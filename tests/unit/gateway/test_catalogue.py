"""The catalogue of engines."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from gateway.fleet.catalogue import Catalogue
from synergai.domain import (
    Engine,
    EngineName,
    TensorSpec,
    WorkerId,
)
from synergai.errors import (
    EngineNotFound,
    EngineUnusable,
    Unavailable,
)

W1, W2 = WorkerId("w1"), WorkerId("w2")


def pending(engine: Engine) -> Engine:
    return replace(engine, inputs=(), outputs=(), fault="it is being inspected", pending=True)


def test_engine_is_found_while_a_worker_serves_it(engine: Engine) -> None:
    catalogue = Catalogue()
    with pytest.raises(EngineNotFound):
        catalogue.find("echo")
    catalogue.update(W1, engine)
    assert catalogue.find("echo") == engine
    catalogue.remove_worker(W1)
    with pytest.raises(Unavailable):
        catalogue.find("echo")
    catalogue.check_known("echo")


def test_engine_faulty_on_every_worker_is_unusable(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, replace(engine, fault="truncated"))
    with pytest.raises(EngineUnusable, match="truncated"):
        catalogue.find("echo")
    catalogue.update(W2, engine)
    assert catalogue.find("echo") == engine


def test_engine_under_inspection_is_unavailable_and_may_be_submitted_to(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, pending(engine))
    with pytest.raises(Unavailable, match="being inspected; retry"):
        catalogue.find("echo")
    catalogue.check_known("echo")
    catalogue.update(W1, engine)
    assert catalogue.find("echo") == engine


def test_engine_with_another_interface_is_faulty(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, engine)
    other = replace(engine, inputs=(TensorSpec("z", "INT8", (1,)),))
    assert "differs" in catalogue.update(W2, other)[W2].fault
    assert catalogue.find("echo") == engine


def test_engine_is_usable_once_the_reference_worker_has_left(engine: Engine) -> None:
    catalogue = Catalogue()
    newer = replace(engine, version="2")
    catalogue.update(W1, engine)
    catalogue.update(W2, newer)
    assert catalogue.remove_worker(W1) == [{W2: newer}]
    assert catalogue.find("echo") == newer


def test_engines_are_usable_once_their_interfaces_agree(engine: Engine) -> None:
    catalogue = Catalogue()
    newer = replace(engine, version="2")
    catalogue.update(W1, engine)
    catalogue.update(W2, newer)
    assert catalogue.update(W1, newer) == {W1: newer, W2: newer}


def test_engines_of_earlier_runs_are_known() -> None:
    with pytest.raises(Unavailable):
        Catalogue([EngineName("echo")]).find("echo")


# --- waiting for an inspection ----------------------------------------------------------------


async def start_waiting(catalogue: Catalogue, count: int = 1) -> list[asyncio.Task[None]]:
    """Start tasks that wait for the inspection of ``echo``."""
    waiting = [asyncio.create_task(catalogue.wait_inspected("echo")) for _ in range(count)]
    await asyncio.sleep(0)
    return waiting


async def test_everyone_who_waits_for_an_inspection_is_woken_at_its_end(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, pending(engine))
    waiting = await start_waiting(catalogue, 3)
    catalogue.update(W1, engine)
    await asyncio.gather(*waiting)


async def test_cancelled_waiter_leaves_the_others_waiting(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, pending(engine))
    cancelled, other = await start_waiting(catalogue, 2)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    assert cancelled.cancelled()
    assert not other.done()
    catalogue.update(W1, engine)
    await other


async def test_engine_is_inspected_after_its_only_waiter_was_cancelled(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, pending(engine))
    (cancelled,) = await start_waiting(catalogue)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    catalogue.update(W1, engine)
    assert catalogue.find("echo") == engine


async def test_waiting_ends_when_the_last_inspecting_worker_leaves(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, pending(engine))
    catalogue.update(W2, pending(engine))
    (waiting,) = await start_waiting(catalogue)
    catalogue.remove_worker(W1)
    await asyncio.sleep(0)
    assert not waiting.done()
    catalogue.remove_worker(W2)
    await waiting
    with pytest.raises(Unavailable):
        catalogue.find("echo")


async def test_waiting_ends_when_every_worker_has_found_a_fault(engine: Engine) -> None:
    catalogue = Catalogue()
    catalogue.update(W1, pending(engine))
    catalogue.update(W2, pending(engine))
    (waiting,) = await start_waiting(catalogue)
    catalogue.update(W1, replace(engine, fault="truncated"))
    await asyncio.sleep(0)
    assert not waiting.done()
    catalogue.update(W2, replace(engine, fault="truncated"))
    await waiting


async def test_inspection_can_be_waited_for_again(engine: Engine) -> None:
    catalogue = Catalogue()
    for _ in range(2):
        catalogue.update(W1, pending(engine))
        (waiting,) = await start_waiting(catalogue)
        assert not waiting.done()
        catalogue.update(W1, engine)
        await waiting


async def test_nothing_is_waited_for_unless_an_engine_is_pending(engine: Engine) -> None:
    catalogue = Catalogue()
    await catalogue.wait_inspected("echo")
    catalogue.update(W1, replace(engine, fault="truncated"))
    await catalogue.wait_inspected("echo")
    catalogue.update(W1, engine)
    await catalogue.wait_inspected("echo")


def test_unknown_engine_suggests_close_names() -> None:
    catalogue = Catalogue([EngineName("onnx_digits"), EngineName("resnet50")])
    with pytest.raises(EngineNotFound, match=r"'resnet5'; did you mean 'resnet50'\?$"):
        catalogue.find("resnet5")
    with pytest.raises(EngineNotFound, match=r"no worker serves engine 'nothing'$"):
        catalogue.find("nothing")
    with pytest.raises(EngineNotFound, match=r"'$"):
        catalogue.find("resnet50" * 1000)


def test_engine_without_samples_takes_no_jobs(engine: Engine) -> None:
    catalogue = Catalogue([EngineName("echo")])
    catalogue.check_samples("echo")
    catalogue.update(W1, pending(engine))
    catalogue.check_samples("echo")
    unverified = replace(engine, samples=0, unverified="it fails on synthetic inputs")
    catalogue.update(W1, unverified)
    with pytest.raises(EngineUnusable, match=r"has no samples; .*warmup"):
        catalogue.check_samples("echo")
    catalogue.update(W2, replace(unverified, samples=8))
    catalogue.check_samples("echo")
