"""Accuracy of the variants of engines on the connected workers.

Accuracy is measured per worker class, since kernels for integers differ. Where it was not measured,
what the engine's folder declares counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.domain import Configuration, EngineName, Session, Variant, WorkerClass
from synergai.errors import InvalidInput
from synergai.names import split_version, versioned_variant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.fleet.worker import ConnectedWorker
    from synergai.profiles.dictionary import ConfigurationDictionary


class FleetVariants:
    """Variants as the dictionary and the workers describe them, by worker and configuration."""

    def __init__(
        self,
        dictionary: ConfigurationDictionary,
        workers: Callable[[], Iterable[ConnectedWorker]],
    ) -> None:
        self._dictionary = dictionary
        self._workers = workers
        self._reaching: dict[tuple[EngineName, str], tuple[ConnectedWorker, Configuration]] = {}

    def accuracy(
        self, engine: EngineName, worker: ConnectedWorker, configuration: Configuration
    ) -> float:
        """Return the accuracy of an engine in a configuration; 0 if it is not known."""
        entry = self._dictionary.row(engine, worker.worker_class).get(configuration)
        samples = self._dictionary.samples(engine, worker.worker_class)
        if entry is not None and entry.is_accurate_on(samples):
            return entry.accuracy
        described = worker.engines.get(engine)
        if described is None or not configuration.variant:
            return 0.0
        declared = {each.name: each.accuracy for each in described.variants}
        return declared.get(configuration.variant, 0.0)

    def check_floor(self, engine: EngineName, floor: float, variant: str = "") -> None:
        """Check that a variant of an engine in service reaches a floor on some worker.

        Passes if no worker that has the engine is in the fleet yet.
        """
        if self._still_reaches(engine, floor, variant):
            return
        best, best_variant, found = 0.0, "", False
        seen: set[tuple[WorkerClass, tuple[Configuration, ...], tuple[Variant, ...]]] = set()
        for worker in self._workers():
            described = worker.engines.get(engine)
            if described is None or described.fault:
                continue
            if not worker.unusable:  # any client may ask: look once at workers that are alike
                kind = worker.worker_class, worker.configurations, described.variants
                if kind in seen:
                    continue
                seen.add(kind)
            for configuration in worker.usable(engine):
                if variant not in ("", configuration.variant):
                    continue
                found = True
                accuracy = self.accuracy(engine, worker, configuration)
                if accuracy >= floor:
                    self._reaching[engine, variant] = worker, configuration
                    return
                if accuracy > best:
                    best, best_variant = accuracy, configuration.variant
        if not found:
            return
        name, version = split_version(engine)
        if not best:
            raise InvalidInput(
                f"the accuracy of engine {name!r} is not known, so a floor of {floor:g} cannot be "
                f"guaranteed; profile it with labelled samples, or omit the floor"
            )
        what = f"variant {versioned_variant(version, best_variant)}" if best_variant else "it"
        raise InvalidInput(
            f"engine {name!r} does not reach an accuracy of {floor:g}: {what} has {best:.4g}"
        )

    def _still_reaches(self, engine: EngineName, floor: float, variant: str) -> bool:
        """Return whether what reached the last floor is still there, and reaches this one."""
        if (known := self._reaching.get((engine, variant))) is None:
            return False
        worker, configuration = known
        if not any(each is worker for each in self._workers()):
            del self._reaching[engine, variant]
            return False
        described = worker.engines.get(engine)
        if described is None or described.fault:
            return False
        names = [each.name for each in described.variants] or [""]
        return (
            configuration.variant in names
            and Session(engine, configuration) not in worker.unusable
            and self.accuracy(engine, worker, configuration) >= floor
        )
