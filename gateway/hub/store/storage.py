"""The files of the store: a record of each version, and content by its SHA-256.

All methods block, and are called in the store's threads.
"""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway.entry.access.caller import matches
from synergai.errors import InvalidInput, Unavailable
from synergai.models.manifest import Manifest, content_digest, read_manifest
from synergai.names import validate_name, validate_stored_version, versioned
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from gateway.hub.store.files import Files
    from synergai.domain import EngineName

_ENGINES: Final = "engines"
_CONTENT: Final = "content"
_ID: Final = "store-id"
_FORMAT: Final = 1
"""Format of the records."""
FROM_WORKER: Final = "worker "
"""Prefix of who pushed a copy from a worker. No client has a name with a space."""
MAX_SELECTORS: Final = 64
_MAX_TEXT: Final = 256
_KEYS: Final = ("worker", "class", "label")

_log = logging.getLogger(__name__)


def parse_placement(texts: Sequence[str]) -> tuple[str, ...]:
    """Return valid selectors of workers in their full form, without duplicates.

    A selector is a list of terms, such as ``class=agx-xavier,label=line-3``. A worker must match
    all of them. ``worker=`` may be left out. Values are shell-style patterns.
    """
    if len(texts) > MAX_SELECTORS:
        raise InvalidInput(f"a version has at most {MAX_SELECTORS} selectors of workers")
    return tuple(dict.fromkeys(_parse(text) for text in texts))


def selects(
    placement: Sequence[str], worker_id: str, worker_class: str, labels: Collection[str]
) -> bool:
    """Return whether one of some valid selectors matches a worker; none at all match every one."""
    return not placement or any(
        all(_term_matches(term, worker_id, worker_class, labels) for term in selector.split(","))
        for selector in placement
    )


def _term_matches(term: str, worker_id: str, worker_class: str, labels: Collection[str]) -> bool:
    key, _, pattern = term.partition("=")
    match key:
        case "worker":
            return matches(pattern, worker_id)
        case "class":
            return matches(pattern, worker_class)
        case _:
            return any(matches(pattern, label) for label in labels)


def _parse(text: str) -> str:
    terms = []
    for part in text.split(","):
        key, separator, pattern = part.strip().rpartition("=")
        key = key.strip() if separator else "worker"
        pattern = pattern.strip()
        if key not in _KEYS or not pattern or not pattern.isprintable() or len(text) > _MAX_TEXT:
            raise InvalidInput(
                f"{text[:_MAX_TEXT]!r} does not select workers: write class=NAME, label=NAME or "
                "worker=ID, or several of them with commas"
            )
        terms.append(f"{key}={pattern}")
    return ",".join(sorted(set(terms)))


class StoredVersion(Struct, frozen=True, kw_only=True):
    """A version of an engine in the store.

    Attributes:
        placement: selectors of the workers that fetch it; none for every one with the backend.
        fault: why it cannot be fetched; empty if it can.
    """

    engine: str
    version: int
    digest: str
    manifest: Manifest
    placement: tuple[str, ...]
    pushed_at: str
    pushed_by: str
    fault: str = ""

    @property
    def model_sha256(self) -> str:
        """Digest of its model, as workers report it."""
        return self.manifest.model_sha256

    @property
    def name(self) -> EngineName:
        return versioned(self.engine, str(self.version))

    @property
    def source(self) -> str:
        """The worker from whose model directory the gateway has copied it; empty if it has not."""
        is_copy = self.pushed_by.startswith(FROM_WORKER)
        return self.pushed_by.removeprefix(FROM_WORKER) if is_copy else ""


class _Record(Struct, frozen=True, kw_only=True):
    """The record of a version, without its content."""

    format: int = _FORMAT
    digest: str
    placement: tuple[str, ...] = ()
    pushed_at: str = ""
    pushed_by: str = ""


class Storage:
    """The records and the content in some files, with an id, to notice that they were lost."""

    def __init__(self, files: Files, location: str, remembered: Path) -> None:
        self._files = files
        self._location = location
        self._remembered = remembered

    def check(self) -> None:
        """Raise `OSError` or `Unavailable` if the storage cannot be reached, or is another one."""
        self._files.sizes(_ENGINES)
        self._check_id()

    def load(self) -> tuple[dict[tuple[str, int], StoredVersion], dict[str, int]]:
        """Return the versions by engine and version, and the sizes of the content by SHA-256."""
        self._check_id()
        content = {
            name.rpartition("/")[2]: size for name, size in self._files.sizes(_CONTENT).items()
        }
        versions = {}
        for name in sorted(self._files.sizes(_ENGINES)):
            try:
                stored = self._read_version(name, content)
            except (InvalidInput, msgspec.DecodeError, ValueError) as error:
                _log.error(
                    "%s in the store of engines cannot be used, and is ignored: %s", name, error
                )
                continue
            if stored.fault:
                _log.error("version %d of %s: %s", stored.version, stored.engine, stored.fault)
            versions[stored.engine, stored.version] = stored
        return versions, content

    def write_record(self, stored: StoredVersion) -> None:
        """Write the record of a version whose content is there, which makes it visible."""
        self._check_id()
        record = msgspec.convert(stored, _Record, from_attributes=True)
        name = _record_name(stored.engine, stored.version)
        self._files.write(name, msgspec.json.encode(record))

    def remove_record(self, engine: str, version: int) -> None:
        self._check_id()
        self._files.remove(_record_name(engine, version))

    def read(self, sha256: str, offset: int, size: int) -> bytes:
        return self._files.read(_content_name(sha256), offset, size)

    def write(self, sha256: str, data: bytes) -> None:
        self._files.write(_content_name(sha256), data)

    def adopt(self, sha256: str, file: Path) -> None:
        self._files.adopt(_content_name(sha256), file)

    def remove(self, sha256: str) -> None:
        self._files.remove(_content_name(sha256))

    def remember(self) -> None:
        """Give the storage an id, and remember it."""
        self._check_id()
        own = self._read_id()
        if not own:
            own = secrets.token_hex(16)
            self._files.write(_ID, own.encode())
        remembered = f"{self._location}\n{own}"
        if not self._remembered.exists() or self._remembered.read_text() != remembered:
            write_atomic(self._remembered, remembered, mode=0o600)

    def _read_version(self, name: str, content: dict[str, int]) -> StoredVersion:
        _, engine, file = name.split("/")
        key = (
            validate_name(engine, "engine name"),
            validate_stored_version(int(file.removesuffix(".json"))),
        )
        record = msgspec.json.decode(self._files.read(name), type=_Record)
        if record.format != _FORMAT:
            raise InvalidInput(
                f"its record has format {record.format}, and this SynergAI reads format {_FORMAT}"
            )
        if record.digest not in content:
            raise InvalidInput(f"its manifest {record.digest[:12]}… is missing")
        data = self._files.read(_content_name(record.digest))
        if content_digest(data) != record.digest:
            raise InvalidInput(f"its manifest {record.digest[:12]}… is damaged")
        manifest = read_manifest(data)
        stored = StoredVersion(
            engine=key[0],
            version=key[1],
            manifest=manifest,
            digest=record.digest,
            placement=record.placement,
            pushed_at=record.pushed_at,
            pushed_by=record.pushed_by,
        )
        absent = [file for file in manifest.files if content.get(file.sha256) != file.size]
        if absent:
            for each in absent:
                content.pop(each.sha256, None)
            return replace(
                stored, fault=f"{absent[0].path} is missing in the store: push the version again"
            )
        return stored

    def _check_id(self) -> None:
        """Check that the storage is the same as before.

        An empty one, such as a disk that is not mounted, would have all workers remove what they
        have fetched.
        """
        try:
            known = self._remembered.read_text().partition("\n")
        except FileNotFoundError:
            return
        if known[0] != self._location:
            return
        if self._read_id() != known[2]:
            raise Unavailable(
                f"the store of engines in {self._location} is not the one that was used before; "
                f"is it mounted? To start with an empty one, remove {self._remembered}"
            )

    def _read_id(self) -> str:
        try:
            return self._files.read(_ID).decode()
        except FileNotFoundError:
            return ""


def _content_name(sha256: str) -> str:
    return f"{_CONTENT}/{sha256[:2]}/{sha256}"


def _record_name(engine: str, version: int) -> str:
    return f"{_ENGINES}/{engine}/{version}.json"
