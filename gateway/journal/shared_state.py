"""State of the leader that the next one continues with, in the database that they share.

It is in the version policies and in the dictionary: gateways and commands read and change them in
the state directory. The database has the policies and each profile as a document. Inputs, results
and engines are too large for it, and belong on storage that all gateways mount.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from gateway.fleet.versions import POLICY_FILE
from gateway.journal.store import JournalBroken, StoreFull
from synergai.errors import SynergaiError
from synergai.profiles.dictionary import KEY, ProfileEntry, from_record, to_record
from synergai.profiles.store import DictionaryStore
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gateway.journal.journal import Journal

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
_PROFILE: Final = "profile "
"""Beginning of the names of profiles."""


class StateDocuments:
    """The documents of a state directory, and of its dictionary. Every method blocks."""

    def __init__(self, directory: Path, dictionary: Path) -> None:
        self._policies = directory / POLICY_FILE
        dictionary.parent.mkdir(parents=True, exist_ok=True)
        self._dictionary = DictionaryStore(dictionary)
        self._profiles: dict[str, str] | None = None

    def read(self) -> dict[str, str]:
        if self._profiles is None or self._dictionary.changed_by_others():
            self._profiles = {_name(entry): _text(entry) for entry in self._dictionary.load()}
        policies = {POLICY_FILE: self._policies.read_text()} if self._policies.exists() else {}
        return self._profiles | policies

    def write(self, documents: Mapping[str, str]) -> None:
        """Replace the documents, which are durable then."""
        policies = documents.get(POLICY_FILE)
        if policies is None:
            self._policies.unlink(missing_ok=True)
        elif not self._policies.exists() or self._policies.read_text() != policies:
            write_atomic(self._policies, policies, 0o600)
        # Deleted first: a predicted profile, for one, does not replace a measured one.
        self._dictionary.delete(lambda entry: documents.get(_name(entry)) != _text(entry))
        known = {_name(entry) for entry in self._dictionary.load()}
        self._dictionary.put_all(
            from_record(msgspec.json.decode(text))
            for name, text in documents.items()
            if name.startswith(_PROFILE) and name not in known
        )
        self._profiles = None

    def close(self) -> None:
        self._dictionary.close()


def _name(entry: ProfileEntry) -> str:
    record = to_record(entry)
    return _PROFILE + msgspec.json.encode([record[name] for name in KEY]).decode()


def _text(entry: ProfileEntry) -> str:
    return msgspec.json.encode(to_record(entry)).decode()


class SharedState:
    """Keeps the documents of the leader's state directory in its journal."""

    def __init__(self, journal: Journal, directory: Path, dictionary: Path) -> None:
        self._journal = journal
        self._documents = StateDocuments(directory, dictionary)
        self._saved: dict[str, str] = {}
        self._one_at_a_time = asyncio.Lock()

    async def restore(self) -> None:
        """Replace the documents by those of the last leader; the first leader keeps its own."""
        self._saved = await self._journal.documents()
        if self._saved:
            await asyncio.to_thread(self._documents.write, self._saved)
        with suppress(StoreFull):  # `follow` tries again
            await self.save()

    async def save(self) -> None:
        """Record what has changed in the directory; durable then."""
        async with self._one_at_a_time:
            current = await asyncio.to_thread(self._documents.read)
            changed = dict(current.items() - self._saved.items())
            removed = self._saved.keys() - current.keys()
            if changed or removed:
                await self._journal.change_documents(changed, removed)
            self._saved = current

    async def follow(self) -> NoReturn:
        """Record changes by commands, and what is learned, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.save()
            except (JournalBroken, StoreFull):  # which the journal reports
                pass
            except (SynergaiError, OSError) as error:
                _log.warning("cannot share the state directory with the next leader: %s", error)

    async def close(self) -> None:
        """Wait for a change in progress, and close the dictionary."""
        async with self._one_at_a_time:
            self._documents.close()
