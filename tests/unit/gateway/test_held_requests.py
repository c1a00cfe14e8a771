"""Parameters of requests, and requests for engines that are still being inspected."""

import asyncio
from typing import cast

import pytest
from msgspec.structs import replace

from gateway.calls.requests.held import HeldRequest, HeldRequests
from gateway.calls.requests.inference import Admitted, Inference, Request
from gateway.calls.requests.parameters import (
    InferenceCall,
    RequestId,
    RequestOptions,
    parse_options,
)
from gateway.entry.access.caller import UNRESTRICTED
from gateway.entry.admission import Admission
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.versions import Versions
from synergai import errors
from synergai.domain import Engine, JobId, WorkerId
from synergai.errors import InvalidInput
from synergai.names import versioned
from synergai.oip.inference_pb2 import InferParameter, ModelInferRequest
from synergai.runtime.clock import Clock
from synergai.wire.parameters import tenant_from_metadata
from synergai.wire.request_codec import Buffer, RequestHeader
from synergai.wire.rpc import RawRequest
from tests.unit.gateway.conftest import raw_request
from tests.waiting import turns

BOX = WorkerId("box")
ID = RequestId(JobId("r1-1"))


class BegunRequest:
    """A request that the inference has begun."""

    def __init__(self) -> None:
        self.result: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        self.abandoned = False

    def abandon(self) -> None:
        self.abandoned = True


class FakeInference:
    """Records the requests it begins; each takes room, like a real one."""

    def __init__(self, catalogue: Catalogue, admission: Admission) -> None:
        self._catalogue = catalogue
        self._admission = admission
        self.begun: list[BegunRequest] = []
        self.rejected: list[errors.SynergaiError] = []

    def count_rejected(self, admitted: Admitted, error: errors.SynergaiError) -> None:
        assert admitted.call.request_id == ID
        self.rejected.append(error)

    def begin_request(self, call: InferenceCall, *, charged: bool) -> Request:
        raw = call.raw
        assert charged
        self._catalogue.find(raw.parsed.message.model_name)
        self._admission.acquire(len(raw.data))
        self.begun.append(BegunRequest())
        return cast("Request", self.begun[-1])


class Harness:
    """Held requests for the engine ``echo``, which is being inspected."""

    def __init__(self, engine: Engine, worker_wait_s: float = 0.0) -> None:
        self.engine = engine
        self.catalogue = Catalogue(worker_wait_s=worker_wait_s)
        pending = replace(engine, inputs=(), outputs=(), fault="inspected", pending=True)
        self.catalogue.update(BOX, pending)
        self.clock = Clock()
        self.admission = Admission(1, 1 << 20, self.clock)
        self.inference = FakeInference(self.catalogue, self.admission)
        self.staged: HeldRequest | None = None
        self.held = HeldRequests(
            cast("Inference", self.inference),
            lambda _: self.staged,
            Versions(self.catalogue),
            self.admission,
        )
        self.raw = self.request()

    def call(self, raw: RawRequest[RequestHeader], budget_s: float | None) -> InferenceCall:
        return InferenceCall(UNRESTRICTED, raw, budget_s, "", ID)

    def request(self, timeout_us: int = 0) -> RawRequest[RequestHeader]:
        message = ModelInferRequest(model_name="echo")
        if timeout_us:
            message.parameters["timeout"].int64_param = timeout_us
        return raw_request(message)


@pytest.fixture
async def harness(engine: Engine) -> Harness:
    return Harness(engine)


async def test_request_whose_engine_runs_in_stages_by_then_runs_in_them(harness: Harness) -> None:
    held = harness.held.hold(harness.call(harness.raw, None))
    answer: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
    harness.staged = HeldRequest(answer)
    harness.catalogue.update(BOX, harness.engine)
    answer.set_result(b"in stages")
    assert await held.result == b"in stages"
    assert harness.inference.begun == []


async def test_request_holds_room_once(harness: Harness) -> None:
    harness.held.hold(harness.call(harness.raw, None))
    with pytest.raises(errors.Overloaded):
        harness.held.hold(harness.call(harness.raw, None))
    harness.catalogue.update(BOX, harness.engine)
    await turns()
    assert harness.admission.requests == 1
    assert len(harness.inference.begun) == 1


async def test_request_that_has_begun_is_abandoned_with_its_client(harness: Harness) -> None:
    request = harness.held.hold(harness.call(harness.raw, None))
    harness.catalogue.update(BOX, harness.engine)
    await turns()
    request.abandon()
    await turns()
    assert harness.inference.begun[0].abandoned


async def test_held_requests_fail_when_the_gateway_stops(harness: Harness) -> None:
    request = harness.held.hold(harness.call(harness.raw, None))
    await turns()
    harness.held.close()
    with pytest.raises(errors.Unavailable, match="is stopping"):
        await request.result
    assert harness.admission.requests == 0


@pytest.mark.parametrize(("budget_s", "timeout_us"), [(0.0, 0), (60.0, 1)])
async def test_deadline_of_call_or_parameters_applies_while_the_engine_is_inspected(
    harness: Harness, budget_s: float, timeout_us: int
) -> None:
    request = harness.held.hold(harness.call(harness.request(timeout_us), budget_s))
    with pytest.raises(errors.DeadlineExceeded, match="still being inspected"):
        await request.result
    assert harness.admission.requests == 0
    assert len(harness.inference.rejected) == 1


# --- engines without a worker -------------------------------------------------------------------


def without_worker(engine: Engine, worker_wait_s: float) -> Harness:
    harness = Harness(engine, worker_wait_s)
    harness.catalogue.withdraw(BOX, engine.name)
    return harness


async def test_request_waits_for_a_worker_with_a_known_engine_and_for_its_inspection(
    engine: Engine,
) -> None:
    harness = without_worker(engine, worker_wait_s=60.0)
    with pytest.raises(errors.EngineUnserved):
        harness.catalogue.find("echo")
    request = harness.held.hold(harness.call(harness.raw, 60.0))
    await turns()
    assert harness.held.count == 1
    pending = replace(engine, inputs=(), outputs=(), fault="inspected", pending=True)
    harness.catalogue.update(BOX, pending)
    await turns()
    assert not harness.inference.begun
    harness.catalogue.update(BOX, engine)
    await turns()
    [begun] = harness.inference.begun
    assert harness.held.count == 0
    begun.result.set_result(b"response")
    assert await request.result == b"response"


@pytest.mark.parametrize(("longest_s", "budget_s"), [(1e-6, None), (60.0, 0.0)])
async def test_wait_for_a_worker_ends_after_the_longest_one_or_at_the_deadline(
    engine: Engine, longest_s: float, budget_s: float | None
) -> None:
    harness = without_worker(engine, longest_s)
    request = harness.held.hold(harness.call(harness.raw, budget_s))
    text = "no worker that serves engine 'echo' is connected"
    with pytest.raises(errors.EngineUnserved, match=text):
        await request.result
    assert len(harness.inference.rejected) == 1
    assert harness.admission.requests == harness.held.count == 0


async def test_unknown_engines_and_a_wait_of_zero_are_refused_at_once(engine: Engine) -> None:
    with pytest.raises(errors.EngineNotFound):
        without_worker(engine, worker_wait_s=60.0).catalogue.find("nobody")
    with pytest.raises(errors.Unavailable) as refusal:
        without_worker(engine, worker_wait_s=0.0).catalogue.find("echo")
    assert not isinstance(refusal.value, errors.EngineUnserved)


def test_version_that_is_being_inspected_is_used_before_one_without_a_worker(
    engine: Engine,
) -> None:
    catalogue = Catalogue(worker_wait_s=60.0)
    pending = replace(engine, inputs=(), outputs=(), fault="inspected", pending=True)
    catalogue.update(BOX, pending)
    catalogue.add_known([versioned("echo", "2")])
    assert Versions(catalogue).resolve("echo") == "echo"


def parameters(**values: float | str) -> dict[str, InferParameter]:
    return {name: parameter(value) for name, value in values.items()}


def parameter(value: float | str) -> InferParameter:
    match value:
        case bool():
            return InferParameter(bool_param=value)
        case int():
            return InferParameter(int64_param=value)
        case float():
            return InferParameter(double_param=value)
        case str():
            return InferParameter(string_param=value)


@pytest.mark.parametrize(("given", "ours"), [(0, 0), (1, 9), (9, 1), (10, 0), (2**40, 0)])
def test_protocol_priorities_map_to_ours_in_reverse(given: int, ours: int) -> None:
    assert parse_options(parameters(priority=given)) == RequestOptions(priority=ours)


def test_tenant_and_timings_are_parsed() -> None:
    options = parse_options(parameters(synergai_tenant="lab", synergai_timings=True))
    assert options == RequestOptions(tenant="lab", timings=True)


@pytest.mark.parametrize("value", [0, 1, "1"])
def test_floor_may_be_a_whole_number(value: int | str) -> None:
    assert parse_options(parameters(synergai_min_accuracy=value)).min_accuracy == float(value)


@pytest.mark.parametrize(
    "value", [-0.1, 1.1, float("nan"), float("inf"), "nan", "-1", "high", "", "0" * 100, True]
)
def test_floor_that_is_no_share_is_refused(value: float | str) -> None:
    with pytest.raises(InvalidInput, match="synergai_min_accuracy"):
        parse_options(parameters(synergai_min_accuracy=value))


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": -1},
        {"priority": "first"},
        {"timeout": 0.5},
        {"timeout": -1},
        {"synergai_tenant": 7},
        {"synergai_tenant": "two words"},
        {"synergai_timings": 1},
    ],
)
def test_invalid_parameter_is_rejected_by_name(wrong: dict[str, float | str]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidInput, match=name.removeprefix("synergai_")):
        parse_options(parameters(**wrong))


def test_metadata_names_the_tenant_of_a_call() -> None:
    assert tenant_from_metadata((("user-agent", "x"), ("synergai-tenant", "lab"))) == "lab"
    assert tenant_from_metadata((("user-agent", "x"),)) == ""
    with pytest.raises(InvalidInput):
        tenant_from_metadata((("synergai-tenant", "two words"),))


def test_unsigned_integers_are_accepted() -> None:
    assert parse_options({"priority": InferParameter(uint64_param=2)}).priority == 8


def test_unknown_parameters_are_ignored() -> None:
    assert parse_options(parameters(content_type="np", weight=0.5)) == RequestOptions()
