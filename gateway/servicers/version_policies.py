"""The calls of ``synergai.v1.Fleet`` that show and change the version policies of engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.access.caller import current_caller
from gateway.access.roles import Role
from synergai.errors import InvalidInput, SynergaiError
from synergai.names import validate_name
from synergai.v1 import fleet_pb2
from synergai.versions import split_version

if TYPE_CHECKING:
    from gateway.fleet.versions import Versions
    from gateway.hub.model_control import ModelControl
    from gateway.hub.rollouts import Rollouts
    from gateway.monitoring.metrics import Metrics
    from synergai.domain import EngineName
    from synergai.protocol.rpc import Context

_ERRORS: Final = ("failed", "expired", "rejected")
"""Outcomes of requests that count as errors of their version."""


class VersionPolicyCalls:
    """Shows and changes version policies."""

    def __init__(
        self,
        versions: Versions,
        rollouts: Rollouts,
        model_control: ModelControl,
        metrics: Metrics,
    ) -> None:
        self._versions = versions
        self._rollouts = rollouts
        self._model_control = model_control
        self._metrics = metrics

    async def get(
        self, request: fleet_pb2.GetVersionPolicyRequest, _context: Context
    ) -> fleet_pb2.VersionPolicy:
        """Return the policy of an engine, and figures of its versions."""
        current_caller().check(Role.OBSERVE, engine=request.engine)
        return self._policy(validate_name(request.engine, "engine name"))

    async def set(
        self, request: fleet_pb2.SetVersionPolicyRequest, _context: Context
    ) -> fleet_pb2.VersionPolicy:
        """Change the policy of an engine."""
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
        known = self._versions.selected(name)
        policy = self._versions.policy(name)
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
            self._versions.catalogue.check_in_service(engine)
        except SynergaiError as error:
            in_service, reason = False, str(error)
        if in_service and not self._versions.counts(engine):
            reason = "not in the store: requests get it only if they name it, or if it is pinned"
        metrics = self._metrics.engine(engine)
        outcomes, success = metrics.requests.outcomes, metrics.statistics.success
        return fleet_pb2.VersionFigures(
            version=split_version(engine)[1],
            in_service=in_service,
            reason=reason,
            prepared=self._versions.is_prepared(engine),
            loaded=self._model_control.is_resident(engine),
            requests=sum(outcomes.values()),
            errors=sum(outcomes.get(outcome, 0) for outcome in _ERRORS),
            mean_s=success.seconds / success.count if success.count else 0.0,
            queries=metrics.queries,
            labelled=metrics.labelled,
            correct=metrics.correct,
        )
