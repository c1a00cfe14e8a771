"""What the gateways of a database share of a state directory: its small files and the dictionary.

They are read and changed there, also by commands. The database has each file and each profile as a
document, so that the next leader continues with them. Inputs, results and engines are too large
for it, and belong on storage that all gateways mount.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from gateway.entry.access import enrolments
from gateway.fleet.version_policy import POLICY_FILE
from synergai.profiles.records import KEY, from_record, to_record
from synergai.profiles.store import DictionaryStore
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from synergai.profiles.dictionary import ProfileEntry

_FILES: Final = (POLICY_FILE, enrolments.FILE)
_PROFILE: Final = "profile "
"""Beginning of the names of profiles."""


class StateDocuments:
    """The documents of a state directory, and of its dictionary. Every method blocks."""

    def __init__(self, directory: Path, dictionary: Path) -> None:
        self._paths = [directory / name for name in _FILES]
        dictionary.parent.mkdir(parents=True, exist_ok=True)
        self._dictionary = DictionaryStore(dictionary)
        self._profiles: dict[str, str] | None = None

    def read(self) -> dict[str, str]:
        """Return the documents by name."""
        if self._profiles is None or self._dictionary.changed_by_others():
            self._profiles = {_name(entry): _text(entry) for entry in self._dictionary.load()}
        return self._profiles | {
            path.name: path.read_text() for path in self._paths if path.exists()
        }

    def write(self, documents: Mapping[str, str]) -> None:
        """Replace the documents, which are durable then."""
        for path in self._paths:
            text = documents.get(path.name)
            if text is None:
                path.unlink(missing_ok=True)
            elif not path.exists() or path.read_text() != text:
                write_atomic(path, text, 0o600)
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
        """Close the dictionary."""
        self._dictionary.close()


def _name(entry: ProfileEntry) -> str:
    record = to_record(entry)
    return _PROFILE + msgspec.json.encode([record[name] for name in KEY]).decode()


def _text(entry: ProfileEntry) -> str:
    return msgspec.json.encode(to_record(entry)).decode()
