"""Append-only log of records in segment files, each record with a checksum.

A record is a header and a payload. The header holds the payload's length, a tag that the owner
chooses, and a checksum of the record's number, its tag and its payload. Zeros that a crash leaves
at the end of a file are therefore never taken for a record.

Records are durable once `sync` returns. The index repeats the headers with their positions. It is
written after the records are durable and never synced itself: what it lacks is read from the
segments when the log is opened. A record that was torn by a crash, and everything behind it, is
cut off then; none of it was durable.

All functions block, and a log has one writer at a time. Records that are durable may be read
meanwhile. Between `sync` and the next `append`, a log has no open files: there may be more logs of
waiting jobs than a process may have file descriptors.

Gateways that take over from each other share the logs, and one that was taken for dead may still
write to the files that it knows. So each epoch has an index and a last segment of its own: who
opens a log first in an epoch copies those of the epoch before, and removes them.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import zlib
from array import array
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from synergai.errors import InternalError, Unavailable
from synergai.runtime.files import make_directory, sync_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    Buffer: TypeAlias = bytes | memoryview

SEGMENT_BYTES: Final = 256 * 1024 * 1024
"""Size from which a new segment begins; removing larger files would occupy the disk for long."""
_HEADER: Final = struct.Struct("<QII")
"""Tag, length of the payload, checksum."""
_ENTRY: Final = struct.Struct("<QQII")
"""Position, and the header: tag, length, checksum."""
_INDEX: Final = "index"
_RECORDS: Final = ".records"
"""Ends the name of a segment, before the epoch if there is one."""
_PARTIAL: Final = ".new-"
_SEGMENT_SHIFT: Final = 40
"""A position is the number of the segment, from 1, and the offset in it in the lower bits."""
_OFFSET_MASK: Final = (1 << _SEGMENT_SHIFT) - 1
NO_SPACE: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_MAX_PARTS: Final = 512
"""Buffers in one system call; the limit of the system is 1024."""


class DamagedLog(InternalError):
    """A durable record can no longer be read."""


class Record(NamedTuple):
    """A record: its tag, and the buffers whose concatenation is its payload."""

    tag: int
    parts: Sequence[Buffer]


class RecordLog:
    """A log in its own directory.

    Args:
        epoch: of the gateway, if it shares the log with others; see `gateway.journal.store`.
    """

    def __init__(
        self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES, epoch: int = 0
    ) -> None:
        self.directory = directory
        self._epoch = epoch
        self._suffix = f".{epoch}" if epoch else ""
        self._names: dict[int, str] = {}
        """Names of the segments that were there when the log was opened."""
        self.bytes = 0
        self._segment_bytes = segment_bytes
        self._positions = array("Q")
        self._tags = array("Q")
        self._lengths = array("Q")
        self._end = 1 << _SEGMENT_SHIFT
        self._durable = 0
        self._index_entries = 0
        self._data = -1
        make_directory(directory)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; records that were not synced may be lost."""
        if self._data >= 0:
            os.close(self._data)
        self._data = -1

    def __len__(self) -> int:
        """Return the number of durable records."""
        return self._durable

    def tags(self) -> Sequence[int]:
        """Return the tags of all records, by number, those included that are not durable yet."""
        return self._tags

    def size(self, number: int) -> int:
        """Return the size of a record's payload; 0 if there is none of that number."""
        return self._lengths[number] if number < self._durable else 0

    # --- writing --------------------------------------------------------------------------

    def append(self, records: Iterable[Record]) -> None:
        """Append records, all or none of them; they are durable after `sync` only."""
        count, end, size = len(self._positions), self._end, self.bytes
        self._open_data()
        try:
            buffers: list[Buffer] = []
            for tag, parts in records:
                length = sum(map(len, parts))
                if self._end & _OFFSET_MASK >= self._segment_bytes:
                    _write(self._data, buffers)
                    buffers = []
                    self._next_segment()
                checksum = _checksum(len(self._positions), tag, parts)
                buffers += (_HEADER.pack(tag, length, checksum), *parts)
                self._add(tag, length)
            _write(self._data, buffers)
        except BaseException:
            self._cut(count, end, size)
            raise

    def sync(self) -> None:
        if self._durable < len(self._positions):
            self._open_data()
            os.fdatasync(self._data)
            self._durable = len(self._positions)
            with suppress(OSError):  # it is rebuilt from the segments
                self._extend_index()
        self.close()

    def _open_data(self) -> None:
        """Open the last segment for writing, and truncate it after the last record."""
        if self._data < 0:
            self._data = self._open_segment(self._end >> _SEGMENT_SHIFT)
            self._cut_segment()

    def _cut_segment(self) -> None:
        offset = self._end & _OFFSET_MASK
        os.ftruncate(self._data, offset)
        os.lseek(self._data, offset, os.SEEK_SET)

    def _add(self, tag: int, length: int) -> None:
        self._positions.append(self._end)
        self._tags.append(tag)
        self._lengths.append(length)
        self._end += _HEADER.size + length
        self.bytes += _HEADER.size + length

    def _next_segment(self) -> None:
        os.fdatasync(self._data)
        os.close(self._data)
        self._data = -1
        number = (self._end >> _SEGMENT_SHIFT) + 1
        self._end = number << _SEGMENT_SHIFT
        self._data = self._open_segment(number)

    def _cut(self, count: int, end: int, size: int) -> None:
        del self._positions[count:], self._tags[count:], self._lengths[count:]
        last = end >> _SEGMENT_SHIFT
        with suppress(OSError):  # opening the log cuts it as well
            for number in range(self._end >> _SEGMENT_SHIFT, last, -1):
                self._segment(number).unlink(missing_ok=True)
        if self._end >> _SEGMENT_SHIFT != last:
            self.close()
        self._end, self.bytes = end, size
        if self._data < 0:
            self._open_data()
        else:
            self._cut_segment()

    def _extend_index(self) -> None:
        entries = bytearray()
        for number in range(self._index_entries, self._durable):
            entry = self._positions[number], self._tags[number], self._lengths[number]
            entries += _ENTRY.pack(*entry, _entry_check(number, *entry))
        index = self._open_index()
        try:
            os.pwrite(index, entries, self._index_entries * _ENTRY.size)
        finally:
            os.close(index)
        self._index_entries = self._durable

    # --- reading --------------------------------------------------------------------------

    def read(self, first: int, count: int, limit_bytes: int) -> list[bytes]:
        """Return the payloads of durable records of one segment, from number `first` on."""
        stop = min(first + count, self._durable)
        if first >= stop:
            return []
        last = first
        segment = self._positions[first] >> _SEGMENT_SHIFT
        start = self._positions[first]
        while (
            last + 1 < stop
            and self._positions[last + 1] >> _SEGMENT_SHIFT == segment
            and self._record_end(last + 1) - start <= limit_bytes
        ):
            last += 1
        data = self._pread(segment, start & _OFFSET_MASK, self._record_end(last) - start)
        view = memoryview(data)
        payloads = []
        for number in range(first, last + 1):
            offset = self._positions[number] - start
            payloads.append(self._payload(number, view[offset:]))
        return payloads

    def _payload(self, number: int, data: memoryview) -> bytes:
        if len(data) >= _HEADER.size:
            tag, length, checksum = _HEADER.unpack_from(data)
            payload = data[_HEADER.size : _HEADER.size + length]
            if (
                tag == self._tags[number]
                and len(payload) == length
                and checksum == _checksum(number, tag, (payload,))
            ):
                return bytes(payload)
        raise DamagedLog(f"record {number} in {self.directory} is damaged")

    def _pread(self, segment: int, offset: int, size: int) -> bytes:
        descriptor = os.open(self._segment(segment), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def _record_end(self, number: int) -> int:
        return self._positions[number] + _HEADER.size + self._lengths[number]

    # --- opening --------------------------------------------------------------------------

    def _open(self) -> None:
        self._take_over()
        index = self._open_index()
        try:
            self._read_index(index)
            self._scan()
            os.ftruncate(index, self._index_entries * _ENTRY.size)
        finally:
            os.close(index)
        self._remove_after(self._end >> _SEGMENT_SHIFT)
        self._open_data()
        self.sync()

    def _take_over(self) -> None:
        """Find the segments; copy the files that a gateway of another epoch may still write to."""
        files = sorted((_epoch_of(path), path.name) for path in self.directory.iterdir())
        latest = files[-1][0] if files else self._epoch
        if 0 < self._epoch < latest:
            raise Unavailable(f"another gateway has taken over {self.directory}")
        indexes = [name for _, name in files if name.startswith(_INDEX)]
        for _, name in files:
            if name.endswith(_RECORDS) or f"{_RECORDS}." in name:
                self._names[int(name.partition(".")[0])] = name
        if latest != self._epoch:
            if self._names:
                last = max(self._names)
                self._copy(self._names.pop(last), self._segment(last).name)
                self._names[last] = self._segment(last).name
            for index in indexes[-1:]:
                self._copy(index, _INDEX + self._suffix)
            sync_path(self.directory)
        for name in {name for _, name in files} - {*self._names.values(), _INDEX + self._suffix}:
            (self.directory / name).unlink()

    def _copy(self, name: str, copy: str) -> None:
        """Copy a file durably; the copy is complete or absent."""
        partial = self.directory / f"{_PARTIAL}{copy}"
        shutil.copyfile(self.directory / name, partial)
        sync_path(partial)
        partial.rename(self.directory / copy)

    def _open_index(self) -> int:
        return os.open(
            self.directory / (_INDEX + self._suffix), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

    def _read_index(self, index: int) -> None:
        """Take the records from the valid beginning of the index."""
        data = os.pread(index, os.fstat(index).st_size, 0)
        sizes = self._segment_sizes()
        whole = len(data) - len(data) % _ENTRY.size
        for position, tag, length, check in _ENTRY.iter_unpack(data[:whole]):
            number = len(self._positions)
            next_segment = ((self._end >> _SEGMENT_SHIFT) + 1) << _SEGMENT_SHIFT
            stop = (position & _OFFSET_MASK) + _HEADER.size + length
            if (
                position not in (self._end, next_segment)
                or check != _entry_check(number, position, tag, length)
                or stop > sizes.get(position >> _SEGMENT_SHIFT, 0)
            ):
                break
            self._end = position
            self._add(tag, length)
        self._index_entries = self._durable = len(self._positions)

    def _scan(self) -> None:
        while (segment := self._segment(self._end >> _SEGMENT_SHIFT)).exists():
            with segment.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                offset = file.seek(self._end & _OFFSET_MASK)
                while size - offset >= _HEADER.size:
                    tag, length, checksum = _HEADER.unpack(file.read(_HEADER.size))
                    offset += _HEADER.size + length
                    if offset > size:
                        return
                    if checksum != _checksum(len(self._positions), tag, (file.read(length),)):
                        return
                    self._add(tag, length)
            following = (self._end >> _SEGMENT_SHIFT) + 1
            # A segment is complete and durable before the next one begins.
            if self._end & _OFFSET_MASK != size or not self._segment(following).exists():
                return
            self._end = following << _SEGMENT_SHIFT

    def _segment_sizes(self) -> dict[int, int]:
        return {number: self._segment(number).stat().st_size for number in self._names}

    def _remove_after(self, segment: int) -> None:
        for number in [each for each in self._names if each > segment]:
            self._segment(number).unlink()
            del self._names[number]

    def _segment(self, number: int) -> Path:
        return self.directory / self._names.get(number, f"{number:08}{_RECORDS}{self._suffix}")

    def _open_segment(self, number: int) -> int:
        path = self._segment(number)
        is_new = not path.exists()
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
        if is_new:
            sync_path(self.directory)
        return descriptor


def remove_log(directory: Path, epoch: int = 0) -> None:
    """Remove a log, unless a gateway of a later epoch has taken it over."""
    files = list(directory.iterdir())
    if epoch and any(_epoch_of(path) > epoch for path in files):
        return
    for path in files:
        path.unlink(missing_ok=True)
    directory.rmdir()


def is_out_of_space(error: OSError) -> bool:
    """Return whether a write failed for lack of space, and can be repeated later."""
    return error.errno in NO_SPACE


def _epoch_of(path: Path) -> int:
    """Return the epoch in which a file of a log was created; 0 if the log was not shared."""
    epoch = path.suffix.removeprefix(".")
    return int(epoch) if epoch.isdigit() else 0


def _checksum(number: int, tag: int, parts: Iterable[Buffer]) -> int:
    checksum = zlib.crc32(struct.pack("<QQ", number + 1, tag))
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum


def _entry_check(number: int, position: int, tag: int, length: int) -> int:
    return zlib.crc32(struct.pack("<QQQI", number + 1, position, tag, length))


def _write(descriptor: int, buffers: Sequence[Buffer]) -> None:
    left: Iterator[Buffer] = iter(buffers)
    while chunk := list(islice(left, _MAX_PARTS)):
        size = sum(map(len, chunk))
        written = os.writev(descriptor, chunk)
        if written < size:
            rest = memoryview(b"".join(chunk))[written:]
            while rest:
                rest = rest[os.write(descriptor, rest) :]
