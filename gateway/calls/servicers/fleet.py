"""``synergai.v1.Fleet``: workers, the dictionary, the versions of engines, and explanations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from gateway.entry.access.caller import READERS, Caller, Role, current_caller
from synergai.core.explanations import Ahead, Explanation, duration, worded
from synergai.core.scheduling.rules.history import KEPT
from synergai.domain import EngineName, Session, UnusableSession
from synergai.errors import InvalidInput, NotFound, SynergaiError
from synergai.names import engine_of_stage, is_selected, split_version, validate_name
from synergai.v1 import common_pb2, fleet_pb2
from synergai.wire import rpc
from synergai.wire.converters import (
    configuration_to_proto,
    engine_to_proto,
    profile_entry_to_proto,
    session_to_proto,
    unusable_session_to_proto,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.versions import Versions
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.control_reports import OfferedEngines
    from gateway.hub.model_control import ModelControl
    from gateway.hub.rollouts import Rollouts
    from gateway.monitoring.metrics import Metrics
    from synergai.core.routes.deployment import EngineDeployment
    from synergai.core.scheduling.core import SchedulerCore
    from synergai.profiles.service import ProfileService
    from synergai.runtime.clock import Clock
    from synergai.wire.server_call import ServerCall

_ERRORS: Final = ("failed", "expired", "rejected")
"""Outcomes of requests that count as errors of their version."""
_QUOTED: Final = 128


class FleetServicer:
    """Serves ``synergai.v1.Fleet``.

    Args:
        deployments: returns the engines that are deployed in stages.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        engines: OfferedEngines,
        profiles: ProfileService,
        policies: PolicyCalls,
        deployments: Callable[[], Sequence[EngineDeployment]],
    ) -> None:
        self._workers = dispatcher.workers
        self._core = dispatcher.core
        self._clock = clock
        self._engines = engines
        self._profiles = profiles
        self._policies = policies
        self._exit_rates = policies.versions.routes.rates
        self._deployments = deployments

    def handler(self) -> rpc.Service:
        return rpc.Service(
            "synergai.v1.Fleet",
            {
                "ListWorkers": rpc.unary(self.list_workers, fleet_pb2.ListWorkersRequest),
                "Explain": rpc.unary(self.explain, fleet_pb2.ExplainRequest),
                "ListDeployments": rpc.unary(
                    self.list_deployments, fleet_pb2.ListDeploymentsRequest
                ),
                "GetDictionary": rpc.unary(self.get_dictionary, fleet_pb2.GetDictionaryRequest),
                "ForgetEngine": rpc.unary(self.forget_engine, fleet_pb2.ForgetEngineRequest),
                "GetVersionPolicy": rpc.unary(
                    self._policies.get_version_policy, fleet_pb2.GetVersionPolicyRequest
                ),
                "SetVersionPolicy": rpc.unary(
                    self._policies.set_version_policy, fleet_pb2.SetVersionPolicyRequest
                ),
            },
        )

    async def list_workers(
        self, _request: fleet_pb2.ListWorkersRequest, _context: ServerCall
    ) -> fleet_pb2.ListWorkersResponse:
        """Return the connected workers that have engines which the caller may observe."""
        caller = current_caller()
        return fleet_pb2.ListWorkersResponse(
            workers=[
                self._worker(worker, caller)
                for worker in self._workers.values()
                if not worker.engines
                or any(caller.may(Role.OBSERVE, engine=name) for name in worker.engines)
            ]
        )

    async def explain(
        self, request: fleet_pb2.ExplainRequest, _context: ServerCall
    ) -> fleet_pb2.Explanation:
        found = explain(
            current_caller(), self._core, self._deployments(), request.id, self._clock.now()
        )
        return fleet_pb2.Explanation(json=msgspec.json.encode(found).decode())

    async def list_deployments(
        self, _request: fleet_pb2.ListDeploymentsRequest, _context: ServerCall
    ) -> fleet_pb2.Deployments:
        """Return the engines in stages that the caller may observe."""
        caller = current_caller()
        found = [
            each for each in self._deployments() if caller.may(Role.OBSERVE, engine=each.engine)
        ]
        return fleet_pb2.Deployments(json=msgspec.json.encode(found).decode())

    async def get_dictionary(
        self, request: fleet_pb2.GetDictionaryRequest, _context: ServerCall
    ) -> fleet_pb2.Dictionary:
        """Return the dictionary entries of an engine or worker class, or all that are visible."""
        caller = current_caller()
        return fleet_pb2.Dictionary(
            entries=[
                profile_entry_to_proto(entry)
                for entry in self._profiles.entries()
                if is_selected(entry.engine, request.engine)
                and request.worker_class in ("", entry.worker_class)
                and caller.may(Role.OBSERVE, engine=entry.engine)
            ]
        )

    async def forget_engine(
        self, request: fleet_pb2.ForgetEngineRequest, _context: ServerCall
    ) -> fleet_pb2.ForgetEngineResponse:
        """Forget the committed description of an engine, durably."""
        current_caller().check(Role.OPERATE, engine=request.engine)
        for engine in self._policies.versions.selected(request.engine):
            await self._engines.forget(engine)
        return fleet_pb2.ForgetEngineResponse()

    def _worker(self, worker: ConnectedWorker, caller: Caller) -> fleet_pb2.Worker:
        def visible(engine: str) -> bool:
            return caller.may(Role.OBSERVE, engine=engine)

        return fleet_pb2.Worker(
            id=worker.id,
            worker_class=worker.worker_class,
            state=self._state(worker),
            cores=worker.cores,
            memory_bytes=worker.memory_bytes,
            configurations=map(configuration_to_proto, worker.configurations),
            engines=[
                engine_to_proto(self._exit_rates.learned(engine))
                for name, engine in sorted(worker.engines.items())
                if visible(name)
            ],
            sessions=[
                session_to_proto(session)
                for session in sorted(worker.sessions)
                if visible(session.engine)
            ],
            unusable=[
                unusable_session_to_proto(UnusableSession(session, reason))
                for session, reason in sorted((self._paused(worker) | worker.unusable).items())
                if visible(session.engine)
            ],
            queries_done=worker.queries_done,
            engines_rss_bytes=worker.engines_rss_bytes,
            memory_limit_bytes=worker.memory_limit_bytes,
            memory_enforcement=worker.memory_enforcement,
            placed=[
                placed for key, placed in sorted(worker.placed.items()) if visible(placed.engine)
            ],
            labels=worker.labels,
            last_heard_s=max(0.0, self._clock.now() - worker.last_seen_at),
            unprofiled=filter(visible, self._core.unprofiled(worker.id)),
            power_mode=worker.power.mode,
            switch_s=worker.power.switch_s,
            meter=worker.power.meter,
            watts=worker.power.watts,
            joules=worker.power.joules,
            profiles=[
                fleet_pb2.WorkerProfile(
                    entry=profile_entry_to_proto(self._profiles.completed(entry)), pace=pace
                )
                for entry, pace in self._core.profiles(worker.id)
                if visible(entry.engine)
            ],
            link=_link(worker),
            peers=(
                common_pb2.PeerLink(worker_id=name, **link._asdict())
                for name, link in worker.peer_links.items()
            ),
        )

    def _state(self, worker: ConnectedWorker) -> fleet_pb2.WorkerState.ValueType:
        if worker.draining:
            return fleet_pb2.WORKER_STATE_DRAINING
        if self._core.ejected(worker.id):
            return fleet_pb2.WORKER_STATE_EJECTED
        return fleet_pb2.WORKER_STATE_BUSY if worker.in_flight else fleet_pb2.WORKER_STATE_IDLE

    def _paused(self, worker: ConnectedWorker) -> dict[Session, str]:
        """Return the variants that are not used on a worker for a while, and why."""
        now = self._clock.now()
        return {
            session: "its engine host crashed while it computed; not used for "
            f"{max(0.0, until - now):.0f} s"
            for session, until in self._core.paused(worker.id).items()
        }


def _link(worker: ConnectedWorker) -> fleet_pb2.WorkerLink:
    link = fleet_pb2.WorkerLink(from_bytes_per_s=worker.received_bytes_per_s)
    if (sent := worker.measure_link()) is not None:
        link.to_bytes_per_s, link.round_trip_s = sent
    return link


class PolicyCalls:
    """The calls on the version policies of engines."""

    def __init__(
        self,
        versions: Versions,
        rollouts: Rollouts,
        model_control: ModelControl,
        metrics: Metrics,
    ) -> None:
        self.versions = versions
        self._rollouts = rollouts
        self._model_control = model_control
        self._metrics = metrics

    async def get_version_policy(
        self, request: fleet_pb2.GetVersionPolicyRequest, _context: ServerCall
    ) -> fleet_pb2.VersionPolicy:
        current_caller().check(Role.OBSERVE, engine=request.engine)
        return self._policy(validate_name(request.engine, "engine name"))

    async def set_version_policy(
        self, request: fleet_pb2.SetVersionPolicyRequest, _context: ServerCall
    ) -> fleet_pb2.VersionPolicy:
        current_caller().check(Role.OPERATE, engine=request.engine)
        name = validate_name(request.engine, "engine name")
        match request.WhichOneof("change"):
            case "rollout":
                await self._rollouts.start(name, request.rollout.version, request.rollout.share)
            case "promote":
                await self._rollouts.promote(name)
            case "roll_back":
                await self._rollouts.roll_back(name)
            case "pin":
                await self._rollouts.pin(name, request.pin)
            case "latest":
                await self._rollouts.follow_latest(name)
            case _:
                raise InvalidInput("the request names no change")
        return self._policy(name)

    def _policy(self, name: str) -> fleet_pb2.VersionPolicy:
        known = self.versions.selected(name)
        policy = self.versions.policy(name)
        rollout = fleet_pb2.Rollout(version=policy.target, share=policy.share)
        return fleet_pb2.VersionPolicy(
            engine=name,
            base=policy.base,
            rollout=rollout if policy.target else None,
            reason=policy.reason,
            versions=map(self._figures, known),
        )

    def _figures(self, engine: EngineName) -> fleet_pb2.VersionFigures:
        in_service, reason = True, ""
        try:
            self.versions.catalogue.check_in_service(engine)
        except SynergaiError as error:
            in_service, reason = False, str(error)
        if in_service and not self.versions.counts(engine):
            reason = "not in the store: requests get it only if they name it, or if it is pinned"
        metrics = self._metrics.engines[engine]
        outcomes, success = metrics.requests.outcomes, metrics.statistics.success
        return fleet_pb2.VersionFigures(
            version=split_version(engine)[1],
            in_service=in_service,
            reason=reason,
            prepared=self.versions.is_prepared(engine),
            loaded=self._model_control.is_resident(engine),
            requests=sum(outcomes.values()),
            errors=sum(outcomes[outcome] for outcome in _ERRORS),
            mean_s=success.seconds / success.count if success.count else 0.0,
            queries=metrics.queries,
            labelled=metrics.labelled,
            correct=metrics.correct,
        )


def explain(
    caller: Caller,
    core: SchedulerCore,
    deployments: Sequence[EngineDeployment],
    name: str,
    now: float,
) -> Explanation:
    """Return the newest explanation under an id, or of all, that a caller may see.

    Callers who may observe its engine are also told how it is deployed in stages.
    """
    found = _explain(caller, core, name, now)
    sentences = (
        f"Deployment of {each.engine}: "
        + "; ".join(filter(None, [each.state, each.where, each.why]))
        + "."
        for each in _of_engine(engine_of_stage(found.engine), deployments)
        if caller.may(Role.OBSERVE, engine=each.engine)
    )
    return replace(found, sentences=(*found.sentences, *sentences))


def _of_engine(engine: str, deployments: Sequence[EngineDeployment]) -> Sequence[EngineDeployment]:
    """Return the deployment of an engine; of all versions if it was refused without one."""
    own = [each for each in deployments if each.engine == engine]
    return own or [each for each in deployments if is_selected(each.engine, engine)]


def _explain(caller: Caller, core: SchedulerCore, name: str, now: float) -> Explanation:
    caller.check_valid()
    stages: list[Explanation] = []
    for found in core.explain(name, now):
        if not caller.may(*READERS, engine=found.engine, tenant=found.tenant):
            continue
        ahead = tuple(_visible(each, caller) for each in found.ahead)
        visible = worded(replace(found, ahead=ahead))
        if not (name and found.id.startswith(f"{name}.")):
            return visible
        stages.append(visible)
    if stages:
        return _joined(name, stages)
    since = ""
    if not math.isinf(at := core.explained_since):
        since = f", at present those of the last {duration(now - at)}"
    what = f"nothing is known of {name[:_QUOTED]!r}" if name else "there is nothing to explain"
    raise NotFound(
        f"{what}: until it restarts, the gateway keeps the last {KEPT:,} requests and "
        f"jobs that were late, refused or failed{since}, and none that were in time"
    )


def _joined(name: str, stages: Sequence[Explanation]) -> Explanation:
    """Join the explanations of a job's stages; the slowest stage gives most of the facts."""
    stages = sorted(stages, key=lambda each: int(each.id.rpartition(".")[2]))
    slowest = max(stages, key=lambda each: each.waited_s)
    last = max(stages, key=lambda each: each.total_s)
    return replace(
        slowest,
        id=name,
        client_id="",
        engine=engine_of_stage(last.engine),
        state=last.state,
        total_s=last.total_s,
        runs=(),
        ahead=(),
        workers=(),
        sentences=tuple(
            sentence
            for each in stages
            for sentence in (f"Stage {each.engine} ({each.id}):", *each.sentences)
        ),
        stages=tuple(stages),
    )


def _visible(ahead: Ahead, caller: Caller) -> Ahead:
    """Hide what a caller may not see of other work."""
    if caller.may(*READERS, engine=ahead.engine, tenant=ahead.tenant):
        return ahead
    return replace(ahead, engine="", job="", tenant="")
