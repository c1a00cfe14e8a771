"""What the runs of all jobs in stages share, and which jobs run in stages."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from gateway.fleet.ways import Way
from gateway.jobs.tensor_room import TensorRoom
from synergai.domain import AssignmentId
from synergai.errors import InvalidInput
from synergai.protocol.validation import STAY

if TYPE_CHECKING:
    from gateway.dispatch.chains import Chains
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.ways import Ways
    from synergai.domain import Engine, JobSpec
    from synergai.runtime.clock import Clock

_OWN_IDS: Final = 39
"""Bit of the ids of recorded ranges that are no assignments; the epoch is above."""


class StagedRuns:
    """Chooses the ways of jobs through their engines, and has what their runs share."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        ways: Ways,
        chains: Chains,
        clock: Clock,
        epoch: int,
        memory_bytes: int,
    ) -> None:
        self.dispatcher = dispatcher
        self.clock = clock
        self.ways = ways
        self.room = TensorRoom(memory_bytes)
        self._chains = chains
        self._ids = count((epoch << (_OWN_IDS + 1)) | (1 << _OWN_IDS))

    def way(self, spec: JobSpec) -> Way | None:
        """Return the way of a job's queries now; None if its engine runs whole, or not at all.

        One with exits follows from the fleet alone, so that a job does not change it with each
        query.
        """
        if spec.variant or not self.ways.catalogue.has_any_stages:  # stages have no variants
            return None
        engine, floor = spec.engine_version, spec.min_accuracy
        if not self.ways.has_exits(engine):
            chain = () if floor else self._chains.of_jobs(engine)
            return Way(chain) if chain else None
        try:
            way = self.ways.find(engine, floor, _inspected_s, _calibrated)
        except InvalidInput:
            return None
        # Nothing can be asked of the exit of the first stage by an input that its worker reads.
        is_free = way is None or not spec.upload_id or way.asks(0) != STAY
        return way if is_free else None

    def reason(self, spec: JobSpec) -> str:
        """Return why a job runs in its stages; empty if there was no choice."""
        return self._chains.reason(spec.engine_version)

    def new_id(self) -> AssignmentId:
        """Return the id of a range that is recorded."""
        return AssignmentId(next(self._ids))


def _inspected_s(engine: Engine) -> float:
    return engine.query_s


def _calibrated(stage: Engine) -> float:
    return 0.0 if stage.exit is None else stage.exit.rate
