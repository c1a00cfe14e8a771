"""The gateway's configuration dictionary: in memory for the scheduler, persisted in its file."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeAlias, TypeVar

from msgspec.structs import replace

from synergai.errors import SynergaiError
from synergai.profiles.dictionary import (
    MAX_ENTRIES,
    OBSERVED,
    ConfigurationDictionary,
    find_implausible,
)
from synergai.profiles.store import DictionaryStore
from synergai.runtime.tasks import TaskBag, run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from synergai.domain import Configuration, EngineName, WorkerClass
    from synergai.profiles.dictionary import ProfileEntry

_log = logging.getLogger(__name__)


class DictionaryChanges(NamedTuple):
    """Changes of the file by other processes."""

    put: list[ProfileEntry]
    removed: list[ProfileEntry]


class _Look(NamedTuple):
    """One look at the file: the keys of its entries, and the entries that are new or changed."""

    keys: set[Key]
    put: list[ProfileEntry]


class _Observed(NamedTuple):
    """What the core does not know of an entry that it has observed."""

    at: str
    digest: str


T = TypeVar("T")
Key: TypeAlias = "tuple[EngineName, WorkerClass, Configuration]"

WATCH_INTERVAL_S: Final = 1.0


class ProfileService:
    """Configuration dictionary of a running gateway.

    Implausible entries of the file are not used.

    Args:
        path: the dictionary's database; created if it does not exist.

    Attributes:
        dictionary: the dictionary, shared with the scheduling core, which updates it.
        set_aside: entries of the file that are not used now; another one may be used in the place
            of each.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._store = DictionaryStore(path)
        self._write_lock = asyncio.Lock()
        self._writes = TaskBag()
        self._observed: dict[Key, _Observed] = {}
        self.set_aside: dict[Key, ProfileEntry] = {}
        self._path = path
        stored = self._store.load()
        self._stored = {key_of(entry) for entry in stored}
        """Keys of the file's entries, when this process last read or wrote it."""
        self._deleted: set[Key] = set()
        """Keys that have disappeared from the file, which is not reported yet."""
        self.dictionary = ConfigurationDictionary(self._plausible(stored))
        if len(stored) > MAX_ENTRIES:
            self._warn_of_size(len(stored))

    def record(self, entry: ProfileEntry, digest: str = "") -> None:
        """Write an entry observed by the core in the background, with the current date.

        Args:
            digest: SHA-256 of the model file that was observed; empty if not known.
        """
        _log.info(
            "observed %s on %s with %s: %s queries/s",
            entry.engine,
            entry.worker_class,
            entry.configuration,
            f"{entry.qps:,.1f}",
        )
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._observed[key_of(entry)] = _Observed(at, digest)
        self._writes.start(self._store_observed(self.completed(entry)))

    def completed(self, entry: ProfileEntry) -> ProfileEntry:
        """Return an entry of the core with the date and model file that it lacks if observed."""
        known = self._observed.get(key_of(entry)) if entry.label == OBSERVED else None
        if known is None:
            return entry
        return replace(entry, measured_at=known.at, digest=known.digest)

    def entries(self) -> Iterator[ProfileEntry]:
        """Return the entries in use, and those set aside in whose place there is no other."""
        used = set()
        for entry in self.dictionary:
            used.add(key_of(entry))
            yield self.completed(entry)
        for key, entry in self.set_aside.items():
            if key not in used:
                yield entry

    async def watch(
        self,
        on_change: Callable[[DictionaryChanges], object],
        interval_s: float = WATCH_INTERVAL_S,
    ) -> NoReturn:
        """Report the entries that other processes change in the file, until cancelled.

        A failure is logged, and the next look at the file tries again.
        """
        retry = False
        while True:
            await asyncio.sleep(interval_s)
            try:
                look = await self._in_thread(partial(self._look, retry))
                if look is not None:
                    changes = self._take_changes(look)
                    if changes.put or changes.removed:
                        _log.info(
                            "the dictionary has changed: %d new or other profiles, %d deleted",
                            len(changes.put),
                            len(changes.removed),
                        )
                        on_change(changes)
                    self._deleted.clear()
            except SynergaiError as error:
                _log.warning("cannot read changed profiles: %s", error)
                retry = True
            except Exception:  # noqa: BLE001 - a bug in one look must not end all others
                _log.exception("cannot use changed profiles, trying again")
                retry = True
            else:
                retry = False

    def _look(self, retry: bool) -> _Look | None:
        """Read the file; return None if no other process has changed it, or it is too large."""
        if not (retry or self._store.changed_by_others()):
            return None
        entries = self._store.load()
        if len(entries) > max(MAX_ENTRIES, len(self._stored)):
            self._warn_of_size(len(entries))
            return None
        put = [entry for entry in self._plausible(entries) if not self._is_known(entry)]
        return _Look({key_of(entry) for entry in entries}, put)

    def _take_changes(self, look: _Look) -> DictionaryChanges:
        """Note the entries of the file; return how they differ from those in memory."""
        # An entry that was never in the file, since it could not be written, was not deleted.
        self._deleted |= self._stored
        self._deleted -= look.keys
        self._stored = look.keys
        removed = [
            known
            for key in self._deleted
            if self.set_aside.pop(key, None) is None and (known := self._in_use(key)) is not None
        ]
        return DictionaryChanges(look.put, removed)

    def _plausible(self, entries: Iterable[ProfileEntry]) -> list[ProfileEntry]:
        plausible = []
        faults = []
        for entry in entries:
            if fault := find_implausible(entry):
                faults.append(f"{entry.engine} on {entry.worker_class}: {fault}")
            else:
                plausible.append(entry)
        if faults:
            _log.warning(
                "%d profiles are implausible and not used, such as %s; delete them with 'synergai "
                "dictionary delete'",
                len(faults),
                faults[0],
            )
        return plausible

    def _warn_of_size(self, entries: int) -> None:
        _log.warning(
            "%s has %d profiles, more than %d: no others are added; see 'synergai dictionary "
            "delete'",
            self._path,
            entries,
            MAX_ENTRIES,
        )

    def _is_known(self, entry: ProfileEntry) -> bool:
        key = key_of(entry)
        if self.set_aside.get(key) == entry:
            return True
        known = self._in_use(key)
        # Only the file has the date of an observed entry, and its model file.
        return known is not None and entry == replace(
            known, measured_at=entry.measured_at, digest=known.digest or entry.digest
        )

    def _in_use(self, key: Key) -> ProfileEntry | None:
        engine, worker_class, configuration = key
        return self.dictionary.row(engine, worker_class).get(configuration)

    async def close(self) -> None:
        """Wait for pending reads and writes, and close the file."""
        await self._writes.wait()
        async with self._write_lock:
            self._store.close()

    async def _in_thread(self, operation: Callable[[], T]) -> T:
        """Run an operation of the store in a thread, one at a time."""
        async with self._write_lock:
            return await run_to_end(asyncio.to_thread(operation))

    async def _store_observed(self, entry: ProfileEntry) -> None:
        try:
            await self._in_thread(partial(self._store.put_observed, entry))
            self._stored.add(key_of(entry))
        except SynergaiError as error:
            _log.warning("cannot store an observed profile, keeping it in memory only: %s", error)


def key_of(entry: ProfileEntry) -> Key:
    """Return what identifies an entry in the dictionary."""
    return entry.engine, entry.worker_class, entry.configuration
