"""Requests for engines that run in stages: each stage is a request of its own.

The outputs of a stage are the inputs of the next one. A stage may run on any worker that has it, so
it is scheduled, retried and accounted for like any other engine. Workers with a peer port hold
their outputs, which the worker of the next stage pulls from them. A query may leave its engine at
an early exit, see `synergai.core.route`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from gateway.calls.requests.held import HeldRequest
from gateway.calls.requests.inference import Admitted, Inference, Request
from gateway.calls.requests.parameters import InferenceCall, join_timings
from gateway.fleet.routes import asked_of_exit
from synergai.core.pipeline import Answer, Command, Drop, Pipeline, Ready, Visit
from synergai.errors import (
    DeadlineExceeded,
    EngineUnusable,
    Infeasible,
    SynergaiError,
    TensorsLost,
    Unavailable,
)
from synergai.names import engine_of_stage
from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.runtime.tasks import TaskBag
from synergai.wire.request_codec import serialise_request
from synergai.wire.rpc import RawRequest
from synergai.wire.stages import as_inputs, as_whole, of_stage
from synergai.wire.validation import DROP, LEAVE, check_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gateway.entry.admission import Admission
    from gateway.fleet.versions import Versions
    from synergai.core.route import Route
    from synergai.domain import Engine
    from synergai.oip.inference_pb2 import InferParameter
    from synergai.wire.request_codec import Buffer, RequestHeader

MOST_LOSSES: Final = 3
"""Times that a stage of a request runs again, because its outputs were lost."""
_LOOK_S: Final = 0.5
"""Interval at which a request that waits in a stage checks that a worker may still run it."""
_TIMINGS: Final = "synergai_timings"


class Tried(NamedTuple):
    """A route on which a request did not end."""

    route: Route
    is_replaced: bool
    """It did not fail: others were to replace it. They may fail, so it may run there once more."""


class StagedRequests:
    """Runs requests stage by stage."""

    def __init__(self, inference: Inference, versions: Versions, admission: Admission) -> None:
        self.inference = inference
        self.routes = versions.routes
        self._rate = versions.routes.rates.rate
        self._versions = versions
        self._admission = admission
        self._running = TaskBag()

    def begin_staged(
        self, call: InferenceCall, *, charged: bool = False, tried: Sequence[Tried] = ()
    ) -> HeldRequest | None:
        """Accept a request for an engine that runs in stages.

        Return None if it is to run whole, or cannot run at all.

        Args:
            charged: it was accepted before, so quotas count it no more.
            tried: routes on which it has begun; it keeps its room.
        """
        message = call.raw.parsed.message
        if "." in message.model_version:
            return None
        try:
            # By the same id as in `Inference.begin_request`, which may get the request next.
            drawn_by = message.id or call.request_id.job
            engine = self._versions.resolve(message.model_name, message.model_version, drawn_by)
        except SynergaiError:
            return None
        if engine not in self._versions.catalogue.stages:
            return None
        call, options = call.resolved()
        try:
            route = self.routes.find(engine, options.min_accuracy, self.now_s, self._rate)
            if route is None or not _may_begin(route, tried):
                return None
            check_header(call.raw.parsed, route.whole)
            if options.min_accuracy and not route.engines[-1].stage_of:
                self._versions.check_floor(engine, options.min_accuracy, "")
            self._check_feasible(route, call.budget_s)
            if not tried:
                # Until its end, so that a gateway which is stopping waits for all of its stages.
                self._admission.acquire(0, accepted=charged)
                self._versions.catalogue.stages.asked[engine] += 1
        except SynergaiError as error:
            if not tried:
                self.inference.count_rejected(Admitted(call, engine, call.tenant), error)
            raise
        work = StagedRequest(self, call, route, tried, charged=charged).run()
        request = HeldRequest(self._running.start_awaited(work))
        if not tried:
            request.result.add_done_callback(lambda _: self._admission.release(0))
        return request

    async def begin_again(
        self, call: InferenceCall, tried: Sequence[Tried], left_s: Callable[[], float | None]
    ) -> Request | HeldRequest | None:
        """Accept a request again once there is a route for it, if there is any.

        It runs whole if its engine does so by now.
        """
        message = call.raw.parsed.message
        for pause_s in (0.0, _LOOK_S):  # a worker tells of an answer before it tells of an engine
            await asyncio.sleep(pause_s)
            await self._versions.wait_inspected(message.model_name, message.model_version, left_s())
            again = replace(call, budget_s=left_s())
            if request := self.begin_staged(again, charged=True, tried=tried):
                return request
        if self._versions.catalogue.whole(tried[-1].route.whole.name) is None:
            return None
        new_id = replace(call.request_id, job=self.inference.new_id())
        return self.inference.begin_request(replace(again, request_id=new_id), charged=True)

    def is_replaced(self, stage: Engine) -> bool:
        """Return whether no worker is to run a stage, and its engine can run otherwise."""
        workers = self.inference.dispatcher.workers.values()
        if any(stage.name in each.open_engines for each in workers if not each.draining):
            return False
        catalogue, engine = self._versions.catalogue, engine_of_stage(stage.name)
        chains = catalogue.open_chains(engine)
        return catalogue.whole(engine) is not None or any(stage not in each for each in chains)

    def now_s(self, engine: Engine) -> float:
        """Return the time that an engine would take now; as inspected, if no more is known."""
        expected_s = self.inference.expected_answer_s(engine.name)
        return engine.query_s if expected_s is None else expected_s

    def _check_feasible(self, route: Route, budget_s: float | None) -> None:
        if budget_s is None:
            return
        if budget_s <= 0:
            raise DeadlineExceeded("the deadline had passed when the request arrived")
        expected_s = self._least_s(route, self.now_s)
        if expected_s > budget_s:
            least_s = self._least_s(route, self._alone_s)
            raise Infeasible(route.whole.name, expected_s, least_s, budget_s)

    def share(self, route: Route, position: int, left_s: float | None) -> tuple[str, float | None]:
        """Return what to ask of the exit of a stage, and the time for it.

        That is what the engines behind it are expected to leave, if that is anything. A query that
        cannot be in time there leaves here, unless it has a floor.
        """
        asked = asked_of_exit(route, position)
        if left_s is None:
            return asked, None
        stage_s = self.now_s(route.engines[position])
        if route.may_leave(position) and not route.floor:
            later_s = route.seconds(self.now_s, self._rate, position + 1)
            if stage_s + later_s > left_s:
                return LEAVE, left_s
        later_s = route.seconds(self.now_s, self._rate, position) - stage_s
        return asked, left_s - later_s if later_s < left_s else left_s

    def _least_s(self, route: Route, seconds: Callable[[Engine], float]) -> float:
        """Return the time of a request, which leaves at the first exit in need."""
        exits = (position for position in range(len(route.engines)) if route.may_leave(position))
        if not route.floor and (first := next(exits, None)) is not None:
            return sum(map(seconds, route.engines[: first + 1]))
        return route.seconds(seconds, self._rate)

    def _alone_s(self, engine: Engine) -> float:
        """Return the time that an engine would take if all workers were idle."""
        return self.inference.dispatcher.core.least_answer_s(engine.name) or engine.query_s


class StagedRequest:
    """Drives the one query of a request through its stages, whose inputs it keeps until its end."""

    def __init__(
        self,
        requests: StagedRequests,
        call: InferenceCall,
        route: Route,
        tried: Sequence[Tried],
        *,
        charged: bool,
    ) -> None:
        self._pipeline = Pipeline(route, MOST_LOSSES, keeps_inputs=True)
        self._requests = requests
        self._inference = requests.inference
        self._call = call
        self._route = route
        self._tried = tried
        self._is_replaced = False
        self._charged = charged
        self._begun = asyncio.get_running_loop().time()
        self._runs = len(tried)  # stages that have begun, at least
        self._position = 0
        self._visit: Visit | None = None
        # By stage: its inputs, and the parameters of its response.
        self._inputs: dict[int, RequestHeader] = {0: call.raw.parsed}
        self._parameters: dict[int, Mapping[str, InferParameter]] = {}

    async def run(self) -> Buffer:
        """Return the response of the engine that answers, as that of the whole engine."""
        engine = self._route.whole.name
        try:
            response = await self._run_stages()
        except SynergaiError as error:
            if isinstance(error, EngineUnusable | Unavailable) and (again := await self._again()):
                try:
                    return await again.result
                except asyncio.CancelledError:
                    again.abandon()
                    raise
            error.request_id = self._call.request_id.job
            if self._stage.stage_of:  # else, the whole engine has counted it
                self._inference.count_staged(engine, error, self._elapsed_s())
            raise
        finally:
            self._execute(self._pipeline.closed())
        if self._stage.stage_of:
            self._inference.count_staged(engine, None, self._elapsed_s())
            response = as_whole(response, self._stage)
        if _TIMINGS in self._call.raw.parsed.message.parameters:
            timings = [self._parameters[position] for position in range(self._position)]
            timings.append(ModelInferResponse.FromString(bytes(response)).parameters)
            joined = ModelInferResponse(parameters=join_timings(timings))
            response = b"".join((response, joined.SerializeToString()))
        return response

    async def _again(self) -> Request | HeldRequest | None:
        """Run on another route, if there is one; the stages of this one may have been replaced."""
        with suppress(SynergaiError):
            tried = (*self._tried, Tried(self._route, self._is_replaced))
            return await self._requests.begin_again(self._call, tried, self._left_s)
        return None

    @property
    def _stage(self) -> Engine:
        return self._route.engines[self._position]

    def _elapsed_s(self) -> float:
        return asyncio.get_running_loop().time() - self._begun

    def _left_s(self) -> float | None:
        budget_s = self._call.budget_s
        return None if budget_s is None else budget_s - self._elapsed_s()

    async def _run_stages(self) -> Buffer:
        route = self._route
        response: Buffer = b""
        self._execute(self._pipeline.begun(0, 1))
        while (visit := self._visit) is not None:
            request, asked = self._begin_stage(visit)
            position, behind = self._position, self._position + 1
            try:
                response = await self._answer(request)
                held = request.held is not None
                outputs = self._requests.routes.read_outputs(
                    route, position, response, held=held, asked=asked
                )
            except TensorsLost:
                self._execute(self._pipeline.lost(visit.id))
                if self._visit is None:
                    raise
                continue
            except (asyncio.CancelledError, SynergaiError):
                request.abandon()
                self._execute(self._pipeline.closed())
                # It may have been answered in this turn.
                late = Answer(visit.id, is_final=True, tensors=request.held)
                self._execute(self._pipeline.answered([late]))
                raise
            if outputs is not None:
                again = route.begins_again(behind)
                self._inputs[behind] = self._inputs[0] if again else as_inputs(*outputs)
                self._parameters[position] = outputs[0].parameters
            answer = Answer(visit.id, is_final=outputs is None, tensors=request.held)
            self._execute(self._pipeline.answered([answer]))
        return response

    async def _answer(self, request: Request) -> Buffer:
        """Return the answer of a stage, as long as a worker may give it."""
        while not (await asyncio.wait([request.result], timeout=_LOOK_S))[0]:
            if self._requests.is_replaced(self._stage):
                self._is_replaced = True
                raise Unavailable(f"no worker can run {self._stage.name!r}, which was replaced")
        return request.result.result()

    def _begin_stage(self, visit: Visit) -> tuple[Request, str]:
        """Begin the request of a stage; return it, and what it asks of the exit there."""
        call, position = self._call, self._position
        asked, stage_s = self._requests.share(self._route, position, self._left_s())
        is_last, client = self._route.is_last(position), call.raw.parsed.message
        header = of_stage(self._inputs[position], client, self._stage, is_last=is_last, asked=asked)
        raw = RawRequest(serialise_request(header.message, header.raw), header)
        request_id = call.request_id
        if self._runs:
            request_id = replace(request_id, job=self._inference.new_id())
        self._runs += 1
        request = self._inference.begin_request(
            replace(call, raw=raw, budget_s=stage_s, request_id=request_id),
            charged=self._charged or self._runs > 1,
            pull=visit.tensors,
            holds_outputs=not is_last and asked not in (LEAVE, DROP),
        )
        return request, asked

    def _execute(self, commands: Iterable[Command]) -> None:
        """Note what to run next, if anything, and let workers drop tensors."""
        self._visit = None
        for command in commands:
            match command:
                case Ready(position=position, visits=[visit]):
                    self._position, self._visit = position, visit
                case Drop(tensors):
                    self._inference.dispatcher.drop(tensors)
                case _:  # it is recorded, or has failed
                    pass


def _may_begin(route: Route, tried: Sequence[Tried]) -> bool:
    """Return whether a request has not failed on a route, nor left it twice."""
    alike = [each for each in tried if each.route.engines == route.engines]
    return not alike or (len(alike) == 1 and alike[0].is_replaced)
