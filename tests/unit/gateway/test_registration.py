"""Variants in the registrations of workers."""

import math

import pytest

from gateway.fleet.worker import ConnectedWorker
from gateway.hub.hub import worker_from_registration
from synergai.core.scheduling.events import SessionSize
from synergai.domain import Configuration, Session
from synergai.errors import InvalidInput
from synergai.v1 import common_pb2, hub_pb2
from synergai.wire.agent_messages import read_engine, read_registration
from synergai.wire.converters import engine_to_proto
from synergai.wire.limits import HUB_VERSION
from tests.unit.gateway.conftest import ECHO, ENGINE


def register(
    *,
    variants: tuple[common_pb2.Variant, ...] = (),
    configurations: tuple[str, ...] = (),
    sessions: tuple[str, ...] = (),
    fault: str = "",
) -> ConnectedWorker:
    """Register a worker with one engine; configurations and sessions are named by variants."""
    engine = engine_to_proto(ENGINE)
    engine.variants.extend(variants)
    engine.fault = fault
    message = hub_pb2.Register(
        protocol_version=HUB_VERSION,
        worker_id="w",
        worker_class="c",
        configurations=[
            common_pb2.Configuration(threads=1, variant=each) for each in configurations
        ],
        engines=[engine],
        sessions=[
            common_pb2.Session(
                engine=ECHO, configuration=common_pb2.Configuration(threads=1, variant=each)
            )
            for each in sessions
        ],
    )
    return worker_from_registration(read_registration(message), None, 0.0)


def variant(name: str, accuracy: float = 0.0, origin: str = "declared") -> common_pb2.Variant:
    return common_pb2.Variant(name=name, accuracy=accuracy, origin=origin)


def test_configurations_of_a_worker_name_no_variant() -> None:
    with pytest.raises(InvalidInput, match=r"threads=1,variant=full: .* name no variant"):
        register(variants=(variant("full"),), configurations=("full",))


def test_sessions_of_variants_that_the_engine_lacks_are_ignored() -> None:
    worker = register(variants=(variant("full"),), sessions=("full", "int8", ""))
    assert worker.sessions == {
        Session(ECHO, Configuration(1, variant="full")),
        Session(ECHO, Configuration(1)),
    }
    assert not register(sessions=("full",)).sessions


@pytest.mark.parametrize("name", ["", ".", "a b", "int8.x", "../up", "-int8", "x" * 200])
def test_malformed_names_of_variants_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="variant name"):
        register(variants=(variant(name),))
    if name:
        with pytest.raises(InvalidInput, match="variant name"):
            register(sessions=(name,))


@pytest.mark.parametrize(
    "impossible",
    [
        (variant("full"), variant("full")),
        (variant("full", accuracy=math.nan),),
        (variant("full", accuracy=1.1),),
        (variant("full", origin="guessed"),),
        tuple(variant(f"v{number}") for number in range(33)),
    ],
    ids=["twice", "nan", "above-1", "origin", "many"],
)
def test_impossible_variants_are_refused(impossible: tuple[common_pb2.Variant, ...]) -> None:
    with pytest.raises(InvalidInput):
        register(variants=impossible)


def test_texts_of_a_worker_are_safe_for_terminals_and_logs() -> None:
    text = "one\x1b[2J\ntwo"
    message = engine_to_proto(ENGINE)
    message.variants.add(name="full", origin="declared", digest=text)
    message.unused_variants.add(name="int8", reason=text)
    for name in ("digest", "fault", "unverified", "samples_digest"):
        setattr(message, name, text)
    engine = read_engine(message)
    texts = {engine.digest, engine.fault, engine.unverified, engine.samples_digest}
    texts |= {engine.variants[0].digest, engine.unused_variants[0].reason}
    assert texts == {"one?[2J two"}


def test_memory_of_sessions_and_cores_of_engines_reach_the_scheduler() -> None:
    session = common_pb2.Session(
        engine=ECHO, configuration=common_pb2.Configuration(threads=1, variant="")
    )
    message = hub_pb2.Register(
        protocol_version=HUB_VERSION,
        worker_id="w",
        worker_class="c",
        engines=[engine_to_proto(ENGINE)],
        session_budget_bytes=1 << 30,
        engine_cores=4,
        session_memory=[
            hub_pb2.SessionMemory(session=session, bytes=7),
            hub_pb2.SessionMemory(session=common_pb2.Session(engine="removed"), bytes=7),
        ],
    )
    worker = worker_from_registration(read_registration(message), None, 0.0).to_scheduling()
    assert worker.memory_bytes == 1 << 30
    assert worker.cores == 4
    assert worker.session_sizes == (SessionSize(Session(ECHO, Configuration(1)), 7),)
    message.ClearField("session_memory")
    message.ClearField("session_budget_bytes")
    message.ClearField("engine_cores")
    earlier = worker_from_registration(read_registration(message), None, 0.0).to_scheduling()
    assert earlier.memory_bytes == 0
    assert earlier.cores == 0
    assert not earlier.session_sizes
