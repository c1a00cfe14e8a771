"""The catalogue of engines."""

from __future__ import annotations

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
    pending = replace(engine, inputs=(), outputs=(), fault="it is being inspected", pending=True)
    catalogue.update(W1, pending)
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
