"""Profiles of the model files that workers serve.

A profile says nothing about another file of the same name. Once the workers of a class serve
another one, its profiles are not used, and the engine is measured by its first queries, until it is
profiled again or the previous file returns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from synergai.core.scheduling.events import ProfilesAdded, ProfilesRemoved
from synergai.profiles.dictionary import OBSERVED
from synergai.profiles.service import key_of
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gateway.fleet.worker import ConnectedWorker
    from synergai.domain import Engine
    from synergai.profiles.dictionary import ProfileEntry
    from synergai.profiles.service import ProfileService

_log = logging.getLogger(__name__)


class ServedProfiles:
    """Decides which entries of the dictionary the core uses, by events for it, in their order."""

    def __init__(
        self, profiles: ProfileService, workers: Callable[[], Iterable[ConnectedWorker]]
    ) -> None:
        self._profiles = profiles
        self._workers = workers

    def learned(self, entry: ProfileEntry) -> None:
        """Store an entry that the core has observed, with the model file that is served."""
        known = set(self._served_digests(entry)) - {""}
        self._profiles.record(entry, known.pop() if len(known) == 1 else "")

    def put(self, entries: Iterable[ProfileEntry]) -> Iterator[ProfilesAdded]:
        """Return the event of new entries that are used, and set the others aside."""
        used = []
        for entry in entries:
            if self._is_of_other_file(entry):
                self._set_aside(entry)
            else:
                self._profiles.set_aside.pop(key_of(entry), None)
                used.append(entry)
        if used:
            yield ProfilesAdded(tuple(used))

    def engine_changed(
        self, worker: ConnectedWorker, engine: Engine
    ) -> Iterator[ProfilesRemoved | ProfilesAdded]:
        """Return the events that follow from an engine of a registered worker."""
        if engine.fault:
            return
        row = self._profiles.dictionary.row(engine.name, worker.worker_class)
        removed = [entry for entry in row.values() if self._is_replaced(entry, engine)]
        if removed:
            for entry in removed:
                self._set_aside(entry)
            self._log(removed)
            yield ProfilesRemoved(tuple(removed))
        keys = [(engine.name, worker.worker_class, each) for each in worker.usable(engine.name)]
        aside = [self._profiles.set_aside.get(key) for key in keys]
        returned = [entry for entry in aside if entry is not None and _may_be_of(entry, engine)]
        for entry in returned:
            del self._profiles.set_aside[key_of(entry)]
        if returned:
            yield ProfilesAdded(tuple(returned))

    def _is_replaced(self, entry: ProfileEntry, engine: Engine) -> bool:
        known = self._profiles.completed(entry)
        return not _may_be_of(known, engine) and self._is_of_other_file(known)

    def _set_aside(self, entry: ProfileEntry) -> None:
        """Keep an entry for the return of its file; one that was observed is soon known again."""
        if entry.label != OBSERVED:
            self._profiles.set_aside[key_of(entry)] = entry

    def _is_of_other_file(self, entry: ProfileEntry) -> bool:
        """Return whether workers of its class serve the engine, none of them with its file."""
        is_served = False
        for digest in self._served_digests(entry) if entry.digest else ():
            if digest in {"", entry.digest}:  # usually of the first worker
                return False
            is_served = True
        return is_served

    def _served_digests(self, entry: ProfileEntry) -> Iterator[str]:
        """Yield the files of an entry's engine or variant on the workers of its class."""
        name, worker_class = entry.engine, entry.worker_class
        for worker in self._workers():
            if worker.worker_class == worker_class:
                engine = worker.engines.get(name)
                if engine is None or engine.fault:
                    continue
                digest = _digest(engine, entry.configuration.variant)
                if digest is not None:
                    yield digest

    @staticmethod
    def _log(removed: list[ProfileEntry]) -> None:
        engine, worker_class = removed[0].engine, removed[0].worker_class
        _log.warning(
            "engine %s on %s: %s of another model file %s not used; for a new one, run synergai "
            "profile --engines %s",
            engine,
            worker_class,
            counted(len(removed), "profile"),
            "is" if len(removed) == 1 else "are",
            engine,
        )


def _may_be_of(entry: ProfileEntry, engine: Engine) -> bool:
    digest = _digest(engine, entry.configuration.variant)
    return not entry.digest or digest in {None, "", entry.digest}


def _digest(engine: Engine, variant: str) -> str | None:
    """Return the SHA-256 of a file; empty if unknown, None if the worker lacks the variant."""
    if engine.variants:
        return next((each.digest for each in engine.variants if each.name == variant), None)
    return None if variant else engine.digest
