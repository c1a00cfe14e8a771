"""Requests for engines that run in stages: each stage is a request of its own.

The outputs of a stage are the inputs of the next one. A stage may run on any worker that has it, so
it is scheduled, retried and accounted for like any other engine. Workers with a peer port hold
their outputs, which the worker of the next stage pulls from them.
"""

from __future__ import annotations

import asyncio
import math
from itertools import chain
from typing import TYPE_CHECKING, Final

from gateway.access.roles import Role
from gateway.fleet.stages import whole_engine
from gateway.requests.held import HeldRequest
from gateway.requests.parameters import parse_options
from gateway.requests.timings import join_timings
from synergai.errors import Overloaded, SynergaiError, TensorsLost
from synergai.oip.inference_pb2 import ModelInferResponse
from synergai.protocol.request_codec import serialise_request
from synergai.protocol.rpc import RawRequest
from synergai.protocol.stages import as_inputs, of_stage, parse_stage_response
from synergai.protocol.validation import check_header
from synergai.versions import split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gateway.access.caller import Caller
    from gateway.admission.admission import Admission
    from gateway.fleet.worker import HeldTensors
    from gateway.requests.inference import Inference, RequestId
    from synergai.domain import Engine, EngineName
    from synergai.oip.inference_pb2 import InferParameter
    from synergai.protocol.request_codec import Buffer, RequestHeader

MOST_REPEATS: Final = 3
"""Times that a stage of a request runs again, because its outputs were lost."""
_TIMINGS: Final = "synergai_timings"


class StagedRequests:
    """Runs requests stage by stage."""

    def __init__(
        self,
        inference: Inference,
        admission: Admission,
        alternatives: Callable[[EngineName], Sequence[tuple[Engine, ...]]],
    ) -> None:
        self._inference = inference
        self._admission = admission
        self._alternatives = alternatives

    def begin(
        self,
        caller: Caller,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        request_id: RequestId,
        stages: tuple[Engine, ...],
    ) -> HeldRequest:
        """Accept a request for the engine that some stages make up; see `Inference.begin`."""
        message, engine = raw.parsed.message, whole_engine(stages)
        stages = self._fastest(engine.name) or stages
        options = parse_options(message.parameters)
        if options.timeout_s is not None:
            budget_s = options.timeout_s if budget_s is None else min(budget_s, options.timeout_s)
        tenant = caller.tenant_of(options.tenant or tenant, Role.INFER, engine=engine.name)
        try:
            check_header(raw.parsed, engine)
            self._check_feasible(engine, stages, budget_s)
            # Until its end, so that a gateway which is stopping waits for all of its stages.
            self._admission.acquire(0)
        except SynergaiError as error:
            self._inference.count_rejected(engine.name, tenant, error)
            raise
        request = HeldRequest(self._run(caller, raw, budget_s, tenant, request_id, stages))
        request.result.add_done_callback(lambda _: self._admission.release(0))
        return request

    def _fastest(self, engine: EngineName) -> tuple[Engine, ...]:
        """Return the chain that is expected to answer first, with its queues and loads."""
        chains = self._alternatives(engine)
        if len(chains) < 2:
            return ()
        times = {
            stage.name: self._inference.expected_answer_s(stage.name)
            for stage in chain.from_iterable(chains)
        }
        known = {name: seconds for name, seconds in times.items() if seconds is not None}
        return min(
            chains, key=lambda stages: sum(known.get(stage.name, math.inf) for stage in stages)
        )

    def _check_feasible(
        self, engine: Engine, stages: Sequence[Engine], budget_s: float | None
    ) -> None:
        expected_s = self._expected_s(stages)
        if budget_s is not None and expected_s > budget_s:
            raise Overloaded(
                f"a response of engine {engine.name!r} would take about {expected_s:.2g} s now, "
                f"but the deadline is in {budget_s:.2g} s: allow more time, or try later"
            )

    def _expected_s(self, stages: Sequence[Engine]) -> float:
        """Return the time that some stages would take now, as far as it is known."""
        return sum(self._inference.expected_answer_s(stage.name) or 0.0 for stage in stages)

    async def _run(
        self,
        caller: Caller,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        request_id: RequestId,
        stages: tuple[Engine, ...],
    ) -> Buffer:
        """Run all stages, and return the last response as that of the whole engine."""
        loop = asyncio.get_running_loop()
        begun, engine = loop.time(), whole_engine(stages).name
        try:
            response, timings = await self._run_stages(
                caller, raw, budget_s, tenant, request_id, stages
            )
        except SynergaiError as error:
            error.request_id = request_id.job
            self._inference.count_staged(engine, error, loop.time() - begun)
            raise
        self._inference.count_staged(engine, None, loop.time() - begun)
        if _TIMINGS in raw.parsed.message.parameters:
            timings.append(ModelInferResponse.FromString(bytes(response)).parameters)
        name, version = split_version(engine)
        whole = ModelInferResponse(
            model_name=name, model_version=version, parameters=join_timings(timings)
        )
        # Fields that are appended to a message replace those before them.
        return b"".join((response, whole.SerializeToString()))

    async def _run_stages(
        self,
        caller: Caller,
        raw: RawRequest[RequestHeader],
        budget_s: float | None,
        tenant: str,
        request_id: RequestId,
        stages: tuple[Engine, ...],
    ) -> tuple[Buffer, list[Mapping[str, InferParameter]]]:
        """Return the response of the last stage, and the timings of those before it."""
        loop = asyncio.get_running_loop()
        begun, client = loop.time(), raw.parsed.message
        inputs: list[tuple[RequestHeader, HeldTensors | None]] = [(raw.parsed, None)]
        timings: list[Mapping[str, InferParameter]] = []
        runs = losses = 0
        try:
            while True:
                place = len(inputs) - 1
                stage, behind, (header, pull) = stages[place], stages[place + 1 :], inputs[place]
                header = of_stage(header, client, stage, is_last=not behind)
                request = self._inference.begin(
                    caller,
                    RawRequest(serialise_request(header.message, header.raw), header),
                    self._budget_s(budget_s, loop.time() - begun, behind),
                    tenant,
                    request_id._replace(job=self._inference.new_id()) if runs else request_id,
                    charged=runs > 0,
                    pull=pull,
                    holds_outputs=bool(behind),
                )
                runs += 1
                try:
                    response = await request.result
                except asyncio.CancelledError:
                    request.abandon()
                    raise
                except TensorsLost:
                    losses += 1
                    if losses > MOST_REPEATS:
                        raise
                    inputs.pop()  # so that the stage before runs again
                    timings.pop()
                    continue
                if not behind:
                    return response, timings
                held = request.held
                message, contents = parse_stage_response(stage, response, held=held is not None)
                inputs.append((as_inputs(message, contents), held))
                timings.append(message.parameters)
        finally:
            for _, held in inputs:
                if held is not None:
                    self._inference.drop(held)

    def _budget_s(
        self, budget_s: float | None, elapsed_s: float, behind: Sequence[Engine]
    ) -> float | None:
        """Return the time for a stage: what those behind it leave, if that is anything."""
        if budget_s is None:
            return None
        remaining_s = budget_s - elapsed_s
        later_s = self._expected_s(behind)
        return remaining_s - later_s if later_s < remaining_s else remaining_s
