"""Inventory: all inputs of a job in files, found and listed before the first one is read.

The list is kept in a temporary file. It makes the number of inputs known, their order stable and
their total digest comparable with that of an earlier run, while memory stays small for millions of
files. Any position can be reached without reading the inputs before it.
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Self

import msgspec

from synergai.data.items import NamedInput, Unusable, clean_name, unusable
from synergai.data.row_files import ROW_SUFFIXES, TEXT_SUFFIXES, open_rows
from synergai.errors import InvalidInput, SynergaiError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.domain import Engine


_MAGIC: Final = re.compile(r"[*?\[]")


class InputFile(NamedTuple):
    """A file that was found.

    Attributes:
        path: as given, or as the pattern matched it.
        size: bytes.
        modified: time of the last modification, in nanoseconds since 1970.
        listed: whether it was found in a directory instead of being named.
    """

    path: str
    size: int
    modified: int
    listed: bool = False


def _suffix(path: str) -> str:
    """Return the suffix of a path in lower case, with its dot; empty without one."""
    return Path(path).suffix.lower()


def read_file(path: str, limit: int) -> bytes:
    # One call for the size and one for the content; `read` of a file object copies.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        data = _read_all(descriptor, min(size, limit) + 1)
    finally:
        os.close(descriptor)
    if not data:
        raise InvalidInput("the file is empty")
    if len(data) > limit:
        raise InvalidInput(f"the file is larger than {limit:,} bytes, the limit of a message")
    return data


def _read_all(descriptor: int, limit: int) -> bytes:
    data = os.read(descriptor, limit)
    # A read may end early at signals, and at 2 GiB.
    while len(data) < limit and (more := os.read(descriptor, limit - len(data))):
        data += more
    return data


def locate(path: str, *, listed: bool = False) -> InputFile:
    """Return a file with its size and time."""
    status = Path(path).stat()
    return InputFile(path, status.st_size, status.st_mtime_ns, listed)


def find(pattern: str) -> Iterator[InputFile]:
    """Yield the files that a path, directory or pattern names, in the order of their names.

    Directories are searched recursively; hidden files, and links to directories, are left out.

    Args:
        pattern: ``*``, ``?``, ``[…]`` and ``**`` are patterns, unless a file is called like that.
    """
    if Path(pattern).is_dir():
        yield from _walk(pattern)
    elif os.path.lexists(pattern):
        yield locate(pattern)
    elif _MAGIC.search(pattern):
        found = False
        # Sorted by name: the position of an input must not depend on the file system.
        # `Path.glob` would find hidden files.
        for path in sorted(glob.iglob(pattern, recursive=True)):  # noqa: PTH207
            if Path(path).is_file():
                found = True
                yield locate(path)
        if not found:
            raise InvalidInput(f"{pattern}: no file matches")
    else:
        raise InvalidInput(f"{pattern}: no such file or directory")


def _walk(directory: str) -> Iterator[InputFile]:
    """Yield the files below a directory; only the names of one directory at a time are held."""

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(directory, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield locate(str(path), listed=True)


_IMAGE_SUFFIXES: Final = frozenset((".jpg", ".jpeg", ".png"))
_TENSORS_ONLY: Final = (
    "the engine takes tensors only, in .npy, .parquet, .csv and .jsonl files; for images, "
    'set preprocess = "resnet50", "mobilenet" or "ssd" in its engine.toml'
)
_LENGTH_BYTES: Final = 4
_CHUNK_BYTES: Final = 1 << 20


class _Entry(msgspec.Struct, array_like=True):
    """A file, or what stands in for it, with `inputs` consecutive inputs.

    Paths are bytes, since names of files need not be text.
    """

    path: bytes
    name: str
    inputs: int
    is_rows: bool
    numbered: bool
    size: int
    modified: int
    reason: str = ""


class InputInventory:
    """Inputs in files; a context manager that owns a temporary file.

    Args:
        patterns: paths, directories and patterns.
        limit: bytes of the largest input.

    Attributes:
        size: bytes of the files.
        skipped: files of directories that are no inputs by their suffix.
        named_by_key: whether the idempotency key follows from `digest`, so that inputs which are
            stored under it are these.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        engine: Engine,
        *,
        limit: int,
    ) -> None:
        self.inputs = self.files = self.size = self.skipped = 0
        self.named_by_key = False
        self._patterns = patterns
        self._engine = engine
        self._limit = limit
        self._usable = 0
        self._first_reason = ""
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="synergai-inputs-")  # noqa: SIM115 - closed by `close`
        self._end = 0
        self._hash = sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary file."""
        self._file.close()

    @property
    def digest(self) -> str:
        """Hexadecimal digest of names, sizes and modification times of all files, in order."""
        return self._hash.hexdigest()

    # --- listing ------------------------------------------------------------------------

    def scan(self) -> Iterator[None]:
        """List all inputs; yield after each file.

        A file that cannot be used becomes one input that fails.
        """
        for pattern in self._patterns:
            has_rows = Path(pattern).is_file() and _suffix(pattern) in TEXT_SUFFIXES
            for file in find(pattern):
                if file.listed and not self._suits(file.path):
                    self.skipped += 1
                else:
                    self._add_file(file, has_rows=has_rows)
                yield
        self._file.flush()
        where = ", ".join(self._patterns)
        if not self.inputs:
            skipped = ""
            if self.skipped:
                skipped = f"; files skipped by their suffix: {self.skipped:,}"
                if not takes_files(self._engine):
                    skipped += f"; {_TENSORS_ONLY}"
            raise InvalidInput(
                f"{where}: there are no inputs for engine {self._engine.name!r}{skipped}"
            )
        if not self._usable:
            if self.files == 1:
                raise InvalidInput(self._first_reason)
            raise InvalidInput(f"{where}: no file can be used, such as {self._first_reason}")

    def _suits(self, path: str) -> bool:
        """Return whether a file that was not named is an input, by its suffix."""
        suffix = _suffix(path)
        if suffix in ROW_SUFFIXES:
            return True
        if self._engine.preprocess:
            return suffix in _IMAGE_SUFFIXES
        return takes_files(self._engine)

    def _add_file(self, file: InputFile, *, has_rows: bool) -> None:
        path, size, modified, _ = file
        entry = _Entry(os.fsencode(path), clean_name(path), 1, False, False, size, modified)
        if has_rows or _suffix(path) in ROW_SUFFIXES:
            self._describe_rows(path, entry)
        elif not takes_files(self._engine):
            entry.reason = _TENSORS_ONLY
        self._append(entry)

    def _describe_rows(self, path: str, entry: _Entry) -> None:
        entry.is_rows = True
        try:
            with open_rows(path, self._engine) as rows:
                entry.inputs, entry.numbered = rows.count, not rows.single
        except Exception as error:
            if isinstance(error, SynergaiError) and not isinstance(error, InvalidInput):
                raise  # a library is missing
            entry.reason = unusable(error).reason

    def _append(self, entry: _Entry) -> None:
        if not entry.reason:
            self._usable += 1
        elif not self._first_reason:
            self._first_reason = f"{entry.name}: {entry.reason}"
        record = msgspec.msgpack.encode(entry)
        self._hash.update(record)
        self._file.write(len(record).to_bytes(_LENGTH_BYTES, "little") + record)
        self._end += _LENGTH_BYTES + len(record)
        self.inputs += entry.inputs
        self.files += 1
        self.size += entry.size

    # --- reading ------------------------------------------------------------------------

    def read(self, start: int = 0) -> Iterator[NamedInput]:
        """Yield the inputs from position `start` on: always ``inputs - start`` of them.

        An input that cannot be read is `Unusable`. Reading holds one file, or one chunk of a file
        of rows, in memory.
        """
        for entry in self._entries():
            if start >= entry.inputs:
                start -= entry.inputs
                continue
            yield from self._read(entry, start)
            start = 0

    def _entries(self) -> Iterator[_Entry]:
        decode = msgspec.msgpack.Decoder(_Entry).decode
        buffer, offset = b"", 0
        while offset < self._end:
            # Not through the file object: several readers do not disturb each other.
            chunk = os.pread(self._file.fileno(), min(_CHUNK_BYTES, self._end - offset), offset)
            offset += len(chunk)
            buffer += chunk
            position = 0
            while len(buffer) - position >= _LENGTH_BYTES:
                begin = position + _LENGTH_BYTES
                end = begin + int.from_bytes(buffer[position:begin], "little")
                if end > len(buffer):
                    break
                yield decode(buffer[begin:end])
                position = end
            buffer = buffer[position:]

    def _read(self, entry: _Entry, start: int) -> Iterator[NamedInput]:
        path = os.fsdecode(entry.path)
        if entry.reason:
            yield NamedInput(entry.name, Unusable(entry.reason))
        elif entry.is_rows:
            yield from self._read_rows(entry, path, start)
        else:
            yield NamedInput(entry.name, self._read_content(path))

    def _read_content(self, path: str) -> bytes | Unusable:
        try:
            return read_file(path, self._limit)
        except (OSError, ValueError, InvalidInput) as error:
            return unusable(error)

    def _read_rows(self, entry: _Entry, path: str, start: int) -> Iterator[NamedInput]:
        failure = Unusable("the file has become shorter while it was read")
        position = start
        try:
            with open_rows(path, self._engine) as rows:
                for row in islice(rows.rows(start), entry.inputs - start):
                    yield NamedInput(_row_name(entry, position), row)
                    position += 1
        except Exception as error:  # noqa: BLE001 - libraries of formats have errors of their own
            failure = unusable(error)
        for number in range(position, entry.inputs):
            yield NamedInput(_row_name(entry, number), failure)


def _row_name(entry: _Entry, position: int) -> str:
    return f"{entry.name}#{position}" if entry.numbered else entry.name


def takes_files(engine: Engine) -> bool:
    """Return whether an encoded file can be the engine's input."""
    return len(engine.inputs) == 1 and (
        bool(engine.preprocess) or engine.inputs[0].datatype == "BYTES"
    )
