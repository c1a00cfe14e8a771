"""Requests for engines that run in stages: each stage is a request of its own.

The outputs of a stage are the inputs of the next one. A stage may run on any worker that has it, so
it is scheduled, retried and accounted for like any other engine. Workers with a peer port hold
their outputs, which the worker of the next stage pulls from them. A query may leave its engine at
an early exit, see `gateway.fleet.ways`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.access.roles import Role
from gateway.requests.held import HeldRequest
from gateway.requests.parameters import parse_options
from gateway.requests.timings import join_timings
from synergai.errors import DeadlineExceeded, Infeasible, SynergaiError, TensorsLost
from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.protocol.request_codec import serialise_request
from synergai.protocol.rpc import RawRequest
from synergai.protocol.stages import as_inputs, has_left, of_stage, parse_stage_response
from synergai.protocol.validation import DROP, LEAVE, check_header
from synergai.runtime.tasks import TaskBag
from synergai.versions import split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.access.caller import Caller
    from gateway.admission.admission import Admission
    from gateway.fleet.versions import Versions
    from gateway.fleet.ways import Way
    from gateway.fleet.worker import HeldTensors
    from gateway.requests.inference import Inference, RequestId
    from synergai.domain import Engine
    from synergai.oip.inference_pb2 import InferParameter
    from synergai.protocol.request_codec import Buffer, RequestHeader

MOST_REPEATS: Final = 3
"""Times that a stage of a request runs again, because its outputs were lost."""
_TIMINGS: Final = "synergai_timings"


class StagedRequests:
    """Runs requests stage by stage."""

    def __init__(self, inference: Inference, versions: Versions, admission: Admission) -> None:
        self._inference = inference
        self._versions = versions
        self._admission = admission
        self._rates = versions.ways.rates
        self._running = TaskBag()

    def begin(
        self,
        caller: Caller,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        request_id: RequestId,
    ) -> HeldRequest | None:
        """Accept a request for an engine that runs in stages; see `Inference.begin`.

        Return None if it is to run whole, or cannot run at all.
        """
        message, catalogue = raw.parsed.message, self._versions.catalogue
        if "." in message.model_version:
            return None
        try:
            # By the same id as in `Inference.begin`, which may get the request next.
            drawn_by = message.id or request_id.job
            engine = self._versions.resolve(message.model_name, message.model_version, drawn_by)
        except SynergaiError:
            return None
        if not catalogue.has_stages(engine):
            return None
        options = parse_options(message.parameters)
        if options.timeout_s is not None:
            budget_s = options.timeout_s if budget_s is None else min(budget_s, options.timeout_s)
        tenant = caller.tenant_of(options.tenant or tenant, Role.INFER, engine=message.model_name)
        try:
            way = self._versions.ways.find(
                engine, options.min_accuracy, self._seconds, self._rates.rate
            )
            if way is None:
                return None
            check_header(raw.parsed, way.whole)
            if options.min_accuracy and not way.engines[-1].stage_of:
                self._versions.check_floor(engine, options.min_accuracy, "")
            self._check_feasible(way, budget_s)
            # Until its end, so that a gateway which is stopping waits for all of its stages.
            self._admission.acquire(0)
        except SynergaiError as error:
            self._inference.count_rejected(request_id, engine, tenant, error)
            raise
        run = self._run(caller, raw, budget_s, tenant, request_id, way)
        request = HeldRequest(self._running.start_awaited(run))
        request.result.add_done_callback(lambda _: self._admission.release(0))
        return request

    def _check_feasible(self, way: Way, budget_s: float | None) -> None:
        if budget_s is None:
            return
        if budget_s <= 0:
            raise DeadlineExceeded("the deadline had passed when the request arrived")
        expected_s = self._least_s(way, self._seconds)
        if expected_s > budget_s:
            least_s = self._least_s(way, self._alone_s)
            raise Infeasible(way.whole.name, expected_s, least_s, budget_s)

    def _least_s(self, way: Way, seconds: Callable[[Engine], float]) -> float:
        """Return the time of a request, which leaves at the first exit in need."""
        exits = (position for position in range(len(way.engines)) if way.may_leave(position))
        if not way.floor and (first := next(exits, None)) is not None:
            return sum(map(seconds, way.engines[: first + 1]))
        return way.seconds(seconds, self._rates.rate)

    def _seconds(self, engine: Engine) -> float:
        """Return the time that an engine would take now; as inspected, if no more is known."""
        expected_s = self._inference.expected_answer_s(engine.name)
        return engine.query_s if expected_s is None else expected_s

    def _alone_s(self, engine: Engine) -> float:
        """Return the time that an engine would take if all workers were idle."""
        return self._inference.least_answer_s(engine.name) or engine.query_s

    async def _run(
        self,
        caller: Caller,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        request_id: RequestId,
        way: Way,
    ) -> Buffer:
        """Run the engines of a way, and return the last response as that of the whole engine."""
        loop = asyncio.get_running_loop()
        begun, engine = loop.time(), way.whole.name
        steps = [_Step(raw.parsed)]
        try:
            response = await self._run_steps(caller, raw, budget_s, tenant, request_id, way, steps)
        except SynergaiError as error:
            error.request_id = request_id.job
            if way.engines[len(steps) - 1].stage_of:  # else, the whole engine has counted it
                self._inference.count_staged(engine, error, loop.time() - begun)
            raise
        whole = ModelInferResponse()
        if way.engines[len(steps) - 1].stage_of:
            self._inference.count_staged(engine, None, loop.time() - begun)
            whole.model_name, whole.model_version = split_version(engine)
        if _TIMINGS in raw.parsed.message.parameters:
            timings = [step.timings for step in steps[:-1]]
            timings.append(ModelInferResponse.FromString(bytes(response)).parameters)
            for name, parameter in join_timings(timings).items():
                whole.parameters[name].CopyFrom(parameter)
        # Fields that are appended to a message replace those before them.
        return b"".join((response, whole.SerializeToString()))

    async def _run_steps(
        self,
        caller: Caller,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        request_id: RequestId,
        way: Way,
        steps: list[_Step],
    ) -> Buffer:
        """Return the response of the engine that answers, to which the last step belongs."""
        loop = asyncio.get_running_loop()
        begun, client = loop.time(), raw.parsed.message
        runs = losses = 0
        try:
            while True:
                position, step = len(steps) - 1, steps[-1]
                stage, is_last = way.engines[position], position + 1 == len(way.engines)
                left_s = None if budget_s is None else budget_s - (loop.time() - begun)
                asked, stage_s = self._share(way, position, left_s)
                header = of_stage(step.header, client, stage, is_last=is_last, asked=asked)
                request = self._inference.begin(
                    caller,
                    RawRequest(serialise_request(header.message, header.raw), header),
                    stage_s,
                    tenant,
                    replace(request_id, job=self._inference.new_id()) if runs else request_id,
                    charged=runs > 0,
                    pull=step.pull,
                    holds_outputs=not is_last and asked not in (LEAVE, DROP),
                )
                runs += 1
                try:
                    response = await request.result
                except asyncio.CancelledError:
                    request.abandon()
                    self._drop(request.held)  # it may have been answered in this turn
                    raise
                except TensorsLost:
                    losses += 1
                    if losses > MOST_REPEATS or step.pull is None:
                        raise
                    self._drop(steps.pop().pull)  # so that the stage before runs again
                    continue
                if is_last:
                    return response
                held = request.held
                message, contents = parse_stage_response(stage, response, held=held is not None)
                if way.may_leave(position) and asked != LEAVE:
                    self._rates.observe(stage, left=has_left(message))
                if has_left(message):
                    return response
                step.timings = message.parameters
                if way.begins_again(position + 1):
                    steps.append(_Step(raw.parsed))
                else:
                    steps.append(_Step(as_inputs(message, contents), held))
        finally:
            for step in steps:
                self._drop(step.pull)

    def _drop(self, held: HeldTensors | None) -> None:
        if held is not None:
            self._inference.drop(held)

    def _share(self, way: Way, position: int, left_s: float | None) -> tuple[str, float | None]:
        """Return what to ask of the exit of a stage, and the time for it.

        That is what the engines behind it are expected to leave, if that is anything. A query that
        cannot be in time there leaves here, unless it has a floor.
        """
        asked = way.asks(position)
        if left_s is None:
            return asked, None
        stage_s = self._seconds(way.engines[position])
        if way.may_leave(position) and not way.floor:
            later_s = way.seconds(self._seconds, self._rates.rate, position + 1)
            if stage_s + later_s > left_s:
                return LEAVE, left_s
        later_s = way.seconds(self._seconds, self._rates.rate, position) - stage_s
        return asked, left_s - later_s if later_s < left_s else left_s


@dataclass(slots=True, eq=False)
class _Step:
    """The run of one engine of a way.

    Attributes:
        pull: their tensors, if a worker holds them.
        timings: parameters of its response.
    """

    header: RequestHeader
    pull: HeldTensors | None = None
    timings: Mapping[str, InferParameter] = field(default_factory=dict)
