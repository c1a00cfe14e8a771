"""Fronts of the engines on workers, kept until they may have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.core.scheduling.variants.fronts import build_front

if TYPE_CHECKING:
    from synergai.core.scheduling.state.estimate import Limit
    from synergai.core.scheduling.state.estimator import Estimator
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.core.scheduling.variants.fronts import ConvexFront
    from synergai.domain import EngineName

_REBUILT_EVERY_S: Final = 1.0
"""Age at which a front is built again, as transfer times drift."""
_MAX_FRONTS: Final = 64
"""Fronts of an engine on a worker that are kept, by floor and pinned variant."""


class Fronts:
    """The fronts of the workers' engines, kept and dropped with their estimates."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator

    def of(
        self,
        engine: EngineName,
        worker: WorkerRecord,
        limit: Limit | None,
        now: float,
        *,
        with_tensors: bool,
    ) -> ConvexFront | None:
        """Return the front of an engine on a worker; see `build_front`."""
        fronts = worker.fronts.get(engine)
        if fronts is None:
            fronts = worker.fronts[engine] = {}
        key = limit, with_tensors
        front = fronts.get(key)
        estimates = self._estimator.estimates(engine, worker)
        if front is not None and now - front.built_at <= _REBUILT_EVERY_S:
            if front.estimates is not estimates:
                front.follow(estimates)
            return front
        variants = worker.variants.get(engine)
        reference = variants[0].name if variants else ""
        front = build_front(estimates, limit, now, with_tensors=with_tensors, reference=reference)
        if front is not None:
            if len(fronts) >= _MAX_FRONTS:  # clients may ask for any floor
                fronts.clear()
            fronts[key] = front
        return front
