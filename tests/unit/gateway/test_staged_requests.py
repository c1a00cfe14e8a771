import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from gateway.calls.requests import staged
from gateway.calls.requests.held import HeldRequest
from gateway.calls.requests.inference import Admitted, Inference, Request
from gateway.calls.requests.parameters import InferenceCall, RequestId
from gateway.calls.requests.staged import MOST_LOSSES, StagedRequests
from gateway.entry.access.caller import UNRESTRICTED
from gateway.entry.admission import Admission
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.versions import VersionPolicy, Versions
from gateway.fleet.worker import ConnectedWorker
from gateway.journal.journal import Journal
from synergai import errors
from synergai.core.pipeline import HeldTensors
from synergai.domain import Engine, JobId, WorkerId
from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.runtime.clock import Clock
from synergai.wire.arrays import build_request
from synergai.wire.validation import DROP, EXIT, LEAVE, STAY
from tests.engines import new_stage, new_whole, with_exit
from tests.unit.gateway.conftest import GatewayHarness, make_worker, raw_request
from tests.waiting import turns, until

DATA = np.arange(4, dtype=np.float32).reshape(1, 4)


STAGES = new_stage(0, 4), new_stage(4, 9)
OTHERS = new_stage(0, 6), new_stage(6, 9)


@dataclass
class Begun:
    """A request of a stage, which the test answers."""

    call: InferenceCall
    charged: bool
    pull: HeldTensors | None
    holds_outputs: bool
    held: HeldTensors | None = None
    result: asyncio.Future[bytes] = field(default_factory=asyncio.Future)
    abandoned: bool = False

    def __post_init__(self) -> None:
        self.message = self.call.raw.parsed.message
        self.contents = [bytes(each) for each in self.call.raw.parsed.raw]
        self.budget_s = self.call.budget_s

    def abandon(self) -> None:
        self.abandoned = True

    def answer(self, tensor: str, left_at: str = "") -> None:
        """Answer with a tensor, the content of the input; maybe at an exit."""
        self._respond(tensor, self.contents, left_at)

    def hold(self, tensor: str, token: str) -> None:
        """Answer with a tensor that the worker holds."""
        self.held = HeldTensors(WorkerId("holder"), token, 16)
        self._respond(tensor, [])

    def _respond(self, tensor: str, contents: list[bytes], left_at: str = "") -> None:
        output = ModelInferResponse.InferOutputTensor(name=tensor, datatype="FP32", shape=[1, 4])
        response = ModelInferResponse(outputs=[output], raw_output_contents=contents)
        if left_at:
            response.parameters[EXIT].string_param = left_at
        self.result.set_result(response.SerializeToString())

    def fail(self, error: Exception) -> None:
        self.result.set_exception(error)


class FakeInference:
    """Runs what the test answers, on workers that take a second for each stage.

    It is its dispatcher and the core as well.
    """

    def __init__(self) -> None:
        self.dispatcher = self.core = self
        self.workers: dict[WorkerId, ConnectedWorker] = {}
        self.begun: list[Begun] = []
        self.counted: list[tuple[str, object]] = []
        self.seconds: dict[str, float] = {}
        self.dropped: list[str] = []

    def new_id(self) -> JobId:
        return JobId(f"new-{len(self.begun)}")

    def expected_answer_s(self, engine: str) -> float:
        return self.seconds.get(engine, 1.0)

    def least_answer_s(self, _engine: str) -> float:
        return 0.5

    def count_rejected(self, admitted: Admitted, error: Exception) -> None:
        assert admitted.call.request_id.client == "mine"
        self.counted.append((admitted.engine, type(error)))

    def count_staged(self, engine: str, error: Exception | None, _seconds: float) -> None:
        self.counted.append((engine, error and type(error)))

    def drop(self, held: HeldTensors) -> None:
        self.dropped.append(held.token)

    def begin_request(
        self,
        call: InferenceCall,
        *,
        charged: bool,
        pull: HeldTensors | None = None,
        holds_outputs: bool = False,
    ) -> Begun:
        assert call.request_id.client == "mine"
        self.begun.append(Begun(call, charged, pull, holds_outputs))
        return self.begun[-1]


class Harness:
    def __init__(self, *engines: Engine) -> None:
        self.inference = FakeInference()
        self.admission = Admission(2, 1 << 20, Clock())
        catalogue = Catalogue()
        for number, engine in enumerate(engines or STAGES):
            catalogue.update(WorkerId(f"worker-{number}"), engine)
        self.versions = Versions(catalogue)
        self.staged = StagedRequests(
            cast("Inference", self.inference), self.versions, self.admission
        )

    def begin(self, budget_s: float | None = None, **parameters: str) -> asyncio.Future[Any]:
        request = build_request("net", {"t0": DATA}, outputs=["t9"], parameters=parameters)
        ids = RequestId(JobId("first"), "mine")
        call = InferenceCall(UNRESTRICTED, raw_request(request), budget_s, "", ids)
        begun = self.staged.begin_staged(call)
        assert begun is not None
        self.request = begun
        return begun.result

    async def start(self, budget_s: float | None = None, **parameters: str) -> asyncio.Future[Any]:
        """Begin a request, and let its first stage begin."""
        result = self.begin(budget_s, **parameters)
        await turns()
        return result

    @property
    def begun(self) -> list[Begun]:
        return self.inference.begun

    async def answer(self, tensor: str) -> None:
        """Answer the last stage that has begun, and let the next one begin."""
        self.begun[-1].answer(tensor)
        await turns()

    async def finish(self, result: asyncio.Future[Any]) -> ModelInferResponse:
        """Answer the last stage; return the response to the request."""
        self.begun[-1].answer("t9")
        return ModelInferResponse.FromString(bytes(await result))

    def redeploy(self) -> None:
        """Replace the stages by others on other workers."""
        catalogue = self.versions.catalogue
        for number, other in enumerate(OTHERS, 2):
            catalogue.update(WorkerId(f"worker-{number}"), other)
        catalogue.retire({each.name for each in STAGES})

    def redeploy_and_fail(self) -> None:
        """Replace the stages, the first of which fails for it."""
        self.redeploy()
        self.begun[-1].fail(errors.EngineUnusable("it is too large"))


@pytest.fixture
async def harness(monkeypatch: pytest.MonkeyPatch) -> Harness:
    monkeypatch.setattr(staged, "_LOOK_S", 0.0)
    return Harness()


async def test_outputs_of_a_stage_are_the_inputs_of_the_next_one(harness: Harness) -> None:
    result = await harness.start()
    [first] = harness.begun
    assert (first.message.model_name, list(first.message.outputs)) == ("net.s0-4", [])
    await harness.answer("t4")
    _, second = harness.begun
    assert [each.name for each in second.message.inputs] == ["t4"]
    assert [each.name for each in second.message.outputs] == ["t9"]
    assert second.contents == [DATA.tobytes()]
    response = await harness.finish(result)
    assert (response.model_name, response.model_version) == ("net", "1")
    assert response.raw_output_contents[0] == DATA.tobytes()
    assert harness.inference.counted == [("net", None)]


async def test_held_outputs_of_a_stage_are_pulled_for_the_next_one_and_dropped_at_the_end(
    harness: Harness,
) -> None:
    result = await harness.start()
    [first] = harness.begun
    assert (first.pull, first.holds_outputs) == (None, True)
    first.hold("t4", "token")
    await turns()
    _, second = harness.begun
    assert (second.pull, second.holds_outputs) == (first.held, False)
    assert [each.name for each in second.message.inputs] == ["t4"]
    assert not second.contents
    assert not harness.inference.dropped
    second.contents = [DATA.tobytes()]
    await harness.finish(result)
    assert harness.inference.dropped == ["token"]


async def test_stage_runs_again_after_its_outputs_were_lost(harness: Harness) -> None:
    result = await harness.start()
    harness.begun[0].hold("t4", "lost")
    await turns()
    harness.begun[1].fail(errors.TensorsLost("they are gone"))
    await turns()
    again = harness.begun[2]
    assert again.contents == [DATA.tobytes()]
    assert (again.charged, again.pull) == (True, None)
    await harness.answer("t4")
    response = await harness.finish(result)
    assert response.raw_output_contents[0] == DATA.tobytes()


async def test_request_fails_once_its_tensors_were_lost_too_often(harness: Harness) -> None:
    result = harness.begin()
    for _ in range(1 + MOST_LOSSES):
        await turns()
        harness.begun[-1].hold("t4", "lost")
        await turns()
        harness.begun[-1].fail(errors.TensorsLost("they are gone"))
    with pytest.raises(errors.TensorsLost):
        await result
    assert harness.inference.dropped == ["lost"] * (1 + MOST_LOSSES)  # they may be out of reach


async def test_tensors_of_a_request_that_is_cancelled_as_a_stage_answers_are_dropped(
    harness: Harness,
) -> None:
    result = await harness.start()
    harness.begun[0].hold("t4", "held")
    harness.request.abandon()
    await turns()
    assert result.cancelled()
    assert harness.inference.dropped == ["held"]


async def test_rollout_from_a_version_in_stages_gets_its_share(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    gateway = GatewayHarness(journal)
    new = new_whole(name="net/2", version="2")
    for number, engine in enumerate((*STAGES, new)):
        gateway.catalogue.update(WorkerId(f"worker-{number}"), engine)
    gateway.versions.policies["net"] = VersionPolicy(base="1", target="2", share=0.5)
    gateway.versions.set_prepared(new.name)
    staged = StagedRequests(gateway.inference, gateway.versions, gateway.admission)
    raw = raw_request(build_request("net", {"t0": DATA}))
    begun = set()
    for _ in range(50):
        ids = RequestId(gateway.inference.new_id())
        call = InferenceCall(UNRESTRICTED, raw, None, "", ids)
        request = staged.begin_staged(call) or gateway.inference.begin_request(call)
        begun.add(type(request))
        request.abandon()
        await turns()
    assert begun == {HeldRequest, Request}
    gateway.dispatcher.close()
    await gateway.jobs.close()
    await journal.close()


async def test_stage_gets_what_those_behind_it_leave(harness: Harness) -> None:
    await harness.start(10.0)
    await harness.answer("t4")
    assert [each.budget_s for each in harness.begun] == [
        pytest.approx(9.0, abs=0.5),
        pytest.approx(10.0, abs=0.5),
    ]


async def test_request_that_all_stages_cannot_answer_in_time_is_refused(harness: Harness) -> None:
    text = r"'net' would take about 2 s now.*deadline is in 1.5 s: allow more time, or try later"
    with pytest.raises(errors.Infeasible, match=text):
        harness.begin(1.5)
    with pytest.raises(errors.Infeasible, match="allow at least 1 s, since no worker is faster"):
        harness.begin(0.9)
    assert not harness.admission.requests
    assert harness.inference.counted == [("net", errors.Infeasible)] * 2


async def test_request_whose_deadline_has_passed_is_refused_as_such(harness: Harness) -> None:
    with pytest.raises(errors.DeadlineExceeded, match="had passed when the request arrived"):
        harness.begin(-0.001)
    assert harness.inference.counted == [("net", errors.DeadlineExceeded)]


async def test_gateway_that_is_stopping_runs_the_stages_of_accepted_requests(
    harness: Harness,
) -> None:
    result = await harness.start()
    harness.admission.close()
    with pytest.raises(errors.Unavailable):
        harness.begin()
    await harness.answer("t4")
    assert harness.admission.requests == 1
    assert [each.charged for each in harness.begun] == [False, True]
    await harness.finish(result)
    await turns()
    assert not harness.admission.requests


async def test_cancelled_request_cancels_its_stage_and_frees_its_room(harness: Harness) -> None:
    result = await harness.start()
    harness.request.abandon()
    await asyncio.wait([result])
    await turns()
    assert harness.begun[0].abandoned
    assert not harness.admission.requests


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (errors.EngineUnusable("it is too large"), "it is too large"),
        (errors.TensorsLost("an agent says so"), "an agent says so"),  # it did not pull any
        (b"\xff\xff", r"stage 'net.s0-4' is malformed"),
    ],
)
async def test_request_fails_with_its_stage_unless_others_replace_it(
    harness: Harness, answer: errors.SynergaiError | bytes, text: str
) -> None:
    result = await harness.start()
    if isinstance(answer, bytes):
        harness.begun[0].result.set_result(answer)
        error: type[errors.SynergaiError] = errors.InternalError
    else:
        harness.begun[0].fail(answer)
        error = type(answer)
    with pytest.raises(error, match=text):
        await result
    assert harness.inference.counted == [("net", error)]


# --- early exits ----------------------------------------------------------------------------

EARLY = with_exit(STAGES[0], 0.75)
WHOLE = new_whole()


def asked(begun: Begun) -> str:
    parameters = begun.message.parameters
    return parameters[EXIT].string_param if EXIT in parameters else ""


async def test_query_that_leaves_at_an_exit_is_answered_there() -> None:
    harness = Harness(EARLY, STAGES[1])
    result = await harness.start()
    [first] = harness.begun
    assert (asked(first), list(map(str, first.message.outputs))) == ("", ['name: "t9"\n'])
    first.answer("t9", left_at="t4")
    response = ModelInferResponse.FromString(bytes(await result))
    assert (response.model_name, response.outputs[0].name) == ("net", "t9")
    assert response.parameters[EXIT].string_param == "t4"
    assert response.raw_output_contents[0] == DATA.tobytes()
    assert harness.inference.counted == [("net", None)]
    assert harness.versions.routes.rates.rate(EARLY) > 0.75


async def test_query_that_stays_goes_on_with_the_tensor() -> None:
    harness = Harness(EARLY, STAGES[1])
    result = await harness.start()
    await harness.answer("t4")
    response = await harness.finish(result)
    assert EXIT not in response.parameters
    assert harness.versions.routes.rates.rate(EARLY) < 0.75


async def test_clients_do_not_say_what_is_asked_of_an_exit() -> None:
    harness = Harness(EARLY, STAGES[1])
    await harness.start(synergai_exit=DROP)
    assert asked(harness.begun[0]) == ""


async def test_query_that_stays_begins_again_where_the_engine_is_whole() -> None:
    harness = Harness(EARLY, WHOLE)
    harness.inference.seconds["net"] = 3.0
    result = await harness.start(10.0, synergai_min_accuracy="0.9")
    [first] = harness.begun
    assert (asked(first), first.holds_outputs) == (DROP, False)
    assert "synergai_min_accuracy" not in first.message.parameters
    assert first.budget_s == pytest.approx(10 - 0.25 * 3, abs=0.2)
    first.result.set_result(ModelInferResponse().SerializeToString())
    await turns()
    _, second = harness.begun
    assert second.message.model_name == "net"
    assert [each.name for each in second.message.inputs] == ["t0"]
    assert second.message.parameters["synergai_min_accuracy"].string_param == "0.9"
    await harness.finish(result)
    assert not harness.inference.counted  # the whole engine has counted the request itself


async def test_later_stages_count_for_the_share_that_gets_there() -> None:
    """With a floor, so that a query does not just leave at its deadline."""
    harness = Harness(EARLY, STAGES[1])
    await harness.start(1.3, synergai_min_accuracy="0.9")
    assert harness.begun[0].budget_s == pytest.approx(1.3 - 0.25, abs=0.2)
    with pytest.raises(errors.Overloaded, match=r"would take about 1.2 s now"):
        harness.begin(1.2, synergai_min_accuracy="0.9")


async def test_query_leaves_if_it_would_be_late_behind_the_exit() -> None:
    harness = Harness(EARLY, STAGES[1])
    await harness.start(1.1)
    assert asked(harness.begun[0]) == LEAVE
    harness.begun[0].answer("t9", left_at="t4")
    await harness.request.result
    assert harness.versions.routes.rates.rate(EARLY) == 0.75
    with pytest.raises(errors.Overloaded, match=r"would take about 1 s now"):
        harness.begin(0.9)


async def test_query_stays_if_its_floor_is_above_the_accuracy_of_the_exit() -> None:
    harness = Harness(EARLY, STAGES[1])
    await harness.start(synergai_min_accuracy="0.955")
    assert asked(harness.begun[0]) == STAY
    with pytest.raises(errors.InvalidInput, match=r"does not reach an accuracy of 0\.97"):
        harness.begin(synergai_min_accuracy="0.97")


async def test_request_whose_stage_fails_begins_again_in_the_stages_that_replace_it(
    harness: Harness,
) -> None:
    result = await harness.start()
    harness.begun[0].hold("t4", "token")
    await turns()
    harness.redeploy_and_fail()
    await turns(10)
    again = harness.begun[2]
    assert (again.message.model_name, again.contents) == ("net.s0-6", [DATA.tobytes()])
    await harness.answer("t6")
    response = await harness.finish(result)
    assert response.raw_output_contents[0] == DATA.tobytes()
    assert harness.inference.counted == [("net", None)]
    assert harness.inference.dropped == ["token"]
    # A late answer of a former stage is none of the one that runs in its place.
    assert len({each.call.request_id.job for each in harness.begun}) == len(harness.begun)


async def test_request_begins_on_no_route_again_on_which_it_has_failed(
    harness: Harness,
) -> None:
    harness.staged._admission = Admission(9, 1 << 20, Clock())
    result = await harness.start()
    harness.redeploy_and_fail()
    await until(lambda: len(harness.begun) == 2)
    harness.versions.catalogue.retire({each.name for each in OTHERS})
    harness.begun[1].fail(errors.Unavailable("its worker has left"))
    with pytest.raises(errors.Unavailable, match="its worker has left"):
        await asyncio.wait_for(result, 5.0)
    assert len(harness.begun) == 2


async def test_request_that_begins_again_needs_no_further_room(harness: Harness) -> None:
    harness.staged._admission = Admission(1, 1 << 20, Clock())
    result = await harness.start()
    harness.redeploy_and_fail()
    await until(lambda: len(harness.begun) == 2)
    result.cancel()
    await asyncio.wait_for(harness.staged._admission.wait_idle(), 5.0)


async def test_request_that_cannot_begin_again_in_time_is_counted_once(
    harness: Harness,
) -> None:
    harness.inference.seconds = {"net.s0-6": 100.0}
    result = await harness.start(10.0)
    harness.redeploy_and_fail()
    with pytest.raises(errors.EngineUnusable, match="it is too large"):
        await result
    assert harness.inference.counted == [("net", errors.EngineUnusable)]


async def test_request_that_begins_again_has_the_time_that_is_left_then(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_inspected(*_: object) -> None:
        await asyncio.sleep(0.2)

    monkeypatch.setattr(harness.versions, "wait_inspected", wait_inspected)
    result = await harness.start(10.0)
    harness.redeploy_and_fail()
    await until(lambda: len(harness.begun) == 2)
    first, second = (each.budget_s or 0.0 for each in harness.begun)
    assert second <= first - 0.2
    result.cancel()


@pytest.mark.parametrize("end", ["closed", "withdrawn"])
async def test_request_waits_for_no_replaced_stage_that_no_worker_is_to_run(
    harness: Harness, end: str
) -> None:
    worker = make_worker()
    worker.engines = {STAGES[0].name: STAGES[0]}
    harness.inference.workers = {worker.id: worker}
    result = await harness.start()
    harness.redeploy()
    await turns(20)
    assert len(harness.begun) == 1
    if end == "closed":
        worker.closed = frozenset(worker.engines)
    else:
        worker.engines.clear()
    await until(lambda: len(harness.begun) == 2)
    assert harness.begun[0].abandoned
    assert harness.begun[1].message.model_name == "net.s0-6"
    result.cancel()


async def test_request_returns_to_the_stages_that_others_failed_to_replace(
    harness: Harness,
) -> None:
    worker = make_worker()
    harness.inference.workers = {worker.id: worker}
    result = await harness.start()
    harness.redeploy()
    await until(lambda: len(harness.begun) == 2)
    worker.engines = {each.name: each for each in STAGES}
    harness.versions.catalogue.retire({each.name for each in OTHERS})
    harness.begun[1].fail(errors.EngineUnusable("it is too large"))
    await until(lambda: len(harness.begun) == 3)
    await harness.answer("t4")
    response = await harness.finish(result)
    assert response.raw_output_contents[0] == DATA.tobytes()


async def test_request_whose_stage_was_replaced_by_the_whole_engine_runs_whole_until_cancelled(
    harness: Harness,
) -> None:
    result = await harness.start()
    catalogue = harness.versions.catalogue
    catalogue.update(WorkerId("worker-9"), new_whole())
    catalogue.retire({each.name for each in STAGES})
    await until(lambda: len(harness.begun) == 2)
    assert harness.begun[1].message.model_name == "net"
    former, again = (each.call.request_id.job for each in harness.begun)
    assert former != again
    result.cancel()
    await turns()
    assert harness.begun[1].abandoned
