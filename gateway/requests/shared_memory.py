"""Regions of system shared memory that clients have registered for their tensors.

A region is a name for a part of a file in ``/dev/shm``. For every access the file is opened and its
size checked, and it is not mapped: a client that shrinks it gets an error, where an access to
mapped memory would end the process.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from synergai.errors import Conflict, InvalidInput, NotFound, Overloaded
from synergai.names import validate_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from synergai.protocol.request_codec import Buffer

MAX_REGIONS: Final = 256
"""Limit on the regions of an owner."""
# Without waiting: a client may have put a pipe there, or have leased the file.
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Owner(Struct, frozen=True):
    """Whose a region is: a tenant, and the user of the gateway's machine who is its client."""

    tenant: str
    user: int


class Region(Struct, frozen=True):
    """A part of the shared memory object `key`; offset and length in bytes."""

    name: str
    key: str
    offset: int
    byte_size: int


class Span(Struct, frozen=True):
    """A part of a region; the offset counts from its beginning."""

    region: str
    offset: int
    byte_size: int


class SharedMemoryRegions:
    """The regions by owner, each only for its owner.

    All methods raise `NotFound` if the owner has no such region, and `InvalidInput` if a name is
    invalid, a part too long, or the file not there, not usable or too short.
    """

    def __init__(self, max_bytes: int, directory: Path = Path("/dev/shm")) -> None:  # noqa: S108 - the system's own
        self.max_bytes = max_bytes
        self._directory = directory
        self._regions: dict[Owner, dict[str, Region]] = {}

    def register(self, owner: Owner, region: Region) -> None:
        """Add a region of an owner."""
        validate_name(region.name, "region name")
        validate_name(_file_name(region.key), "key of shared memory")
        regions = self._regions.get(owner, {})
        if region.name in regions:
            raise Conflict(f"region {region.name!r} is registered already: unregister it first")
        if len(regions) >= MAX_REGIONS:
            raise Overloaded(f"the limit is {MAX_REGIONS} regions: unregister some")
        with self._opened(owner, region):
            self._regions[owner] = regions | {region.name: region}

    def unregister(self, owner: Owner, name: str) -> None:
        """Remove a region of an owner if it is there, or all of them if the name is empty."""
        regions = self._regions.get(owner, {})
        regions.pop(name, None)
        if not (name and regions):
            self._regions.pop(owner, None)

    def status(self, owner: Owner, name: str) -> Sequence[Region]:
        """Return a region of an owner, or all of them if the name is empty."""
        if not name:
            return list(self._regions.get(owner, {}).values())
        return [self.check(owner, Span(name, 0, 0))]

    def check(self, owner: Owner, span: Span) -> Region:
        """Return the region of a part, which lies within it."""
        region = self._regions.get(owner, {}).get(span.region)
        if region is None:
            raise NotFound(
                f"there is no shared memory region {span.region[:128]!r}: register it with "
                "SystemSharedMemoryRegister"
            )
        if span.offset + span.byte_size > region.byte_size:
            raise InvalidInput(
                f"{span.byte_size:,} bytes at offset {span.offset:,} exceed region "
                f"{region.name!r}, which has {region.byte_size:,} bytes"
            )
        return region

    def read(self, owner: Owner, span: Span) -> bytes:
        """Return a copy of a part of a region."""
        region = self.check(owner, span)
        with self._opened(owner, region) as file:
            data = os.pread(file, span.byte_size, region.offset + span.offset)
        if len(data) != span.byte_size:
            raise _unusable(region, "it has shrunk")
        return data

    def write(self, owner: Owner, span: Span, data: Buffer) -> None:
        """Write a tensor to the beginning of a part of a region, into which it has to fit."""
        region = self.check(owner, span)
        if len(data) > span.byte_size:
            raise InvalidInput(
                f"the tensor has {len(data):,} bytes, but the request leaves it "
                f"{span.byte_size:,} in region {region.name!r}"
            )
        with self._opened(owner, region) as file:
            if os.pwrite(file, data, region.offset + span.offset) != len(data):
                raise _unusable(region, "it is full")

    @contextmanager
    def _opened(self, owner: Owner, region: Region) -> Iterator[int]:
        """Open the file of a region, which is at least as long as its end."""
        try:
            file = os.open(self._directory / _file_name(region.key), _FLAGS)
            try:
                status = os.fstat(file)
                if not stat.S_ISREG(status.st_mode):
                    raise _unusable(region, "it is not a regular file")
                if owner.user not in (status.st_uid, 0):
                    raise _unusable(region, "it belongs to another user")
                if region.offset + region.byte_size > status.st_size:
                    raise _unusable(region, f"it is too short, {status.st_size:,} bytes")
                yield file
            finally:
                os.close(file)
        except OSError as error:
            raise _unusable(region, error.strerror) from error


def _file_name(key: str) -> str:
    return key.removeprefix("/")


def _unusable(region: Region, reason: str | None) -> InvalidInput:
    return InvalidInput(
        f"cannot read and write the shared memory {region.key!r} of region {region.name!r}: "
        f"{reason}"
    )
