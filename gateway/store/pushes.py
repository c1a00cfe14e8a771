"""Versions that clients are pushing, and the room that is kept for them."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from synergai.errors import InvalidInput, NotFound, Overloaded
from synergai.models.manifest import validate_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gateway.store.threads import Threads
    from synergai.models.contents import Contents
    from synergai.models.manifest import Manifest

KEEP_FREE_BYTES: Final = 512 << 20
"""Space that pushes leave on the disk of the state directory, which has the journal as well."""
ABANDONED_S: Final = 3600.0
"""Time after which no room is kept for a push that was not continued; what it has sent stays."""
_MAX_PUSHES: Final = 64


class PushKey(NamedTuple):
    """Identity of a push; engines may have the same files."""

    engine: str
    version: int
    digest: str


class Missing(Struct, frozen=True):
    """Content that the store lacks: its SHA-256, size, and the bytes received so far."""

    sha256: str
    size: int
    received: int


class Push:
    """A version that a client is pushing.

    Attributes:
        data: its manifest, as it was sent.
        manifest: the manifest.
        contents: sizes of its contents by SHA-256.
        continued_at: when it was begun or continued, in monotonic seconds.
    """

    def __init__(self, data: bytes, manifest: Manifest) -> None:
        self.data = data
        self.manifest = manifest
        self.contents = manifest.contents
        self.continued_at = 0.0


class Pushes:
    """The versions that clients are pushing, and what was received of them.

    Args:
        contents: the content that was received.
        threads: threads for blocking operations.
        budget_bytes: limit of the store's content; 0 for none.
        keep_free_bytes: space that pushes leave on their disk.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        contents: Contents,
        threads: Threads,
        *,
        budget_bytes: int = 0,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contents = contents
        self._threads = threads
        self._budget_bytes = budget_bytes
        self._keep_free_bytes = keep_free_bytes
        self._clock = clock
        self._pushes: dict[PushKey, Push] = {}

    def get(self, key: PushKey) -> Push | None:
        """Return a push; None if it was not begun, has ended or was abandoned."""
        return self._pushes.get(key)

    def end(self, key: PushKey) -> None:
        """Keep no more room for a push."""
        self._pushes.pop(key, None)

    async def begin(self, key: PushKey, push: Push, stored: Mapping[str, int]) -> list[Missing]:
        """Begin or continue a push; return the content that is to be uploaded.

        Args:
            key: its key.
            push: the push.
            stored: sizes of the content that the store has, by SHA-256.

        Raises:
            Overloaded: there is no room for it.
            Unavailable: what was received cannot be read.
        """
        self.end(key)
        self._check_budget(push, stored)
        while len(self._pushes) >= _MAX_PUSHES:
            self.end(min(self._pushes, key=lambda each: self._pushes[each].continued_at))
        push.continued_at = self._clock()
        self._pushes[key] = push  # at once: other pushes have to count it
        lacking = _lacking(push, stored)
        try:
            missing = await self._threads.run(partial(self._missing, lacking))
            needed = sum(each.size - each.received for each in missing)
            await self._threads.run(partial(self._check_disk, needed))
        except BaseException:
            if self._pushes.get(key) is push:
                self.end(key)
            raise
        return missing

    async def append(self, sha256: str, offset: int, data: bytes) -> int:
        """Append to content that is being uploaded; return the bytes received so far.

        The digest is verified with the last byte.

        Raises:
            NotFound: no version that was opened lacks it.
            InvalidInput: it is larger than it should be, or has another digest.
            Unavailable: another call has appended meanwhile.
            Overloaded: the disk is full.
        """
        push = self._find(sha256)
        push.continued_at = self._clock()
        size = push.contents[sha256]
        received = await self._threads.run(partial(self._append, sha256, offset, data, size))
        if received == size and not await self._threads.run(
            partial(self._contents.verify, sha256, size)
        ):
            raise InvalidInput(
                f"the content that was uploaded as {sha256[:12]}… has another digest: the file "
                "changed meanwhile, or was damaged on its way; push it again"
            )
        return received

    async def complete(
        self, push: Push, stored: Mapping[str, int]
    ) -> list[tuple[str, Path | None]]:
        """Return the files of uploaded content that the store lacks; None for an incomplete one.

        Raises:
            InvalidInput: the manifest has a wrong size of one.
            Unavailable: they cannot be read.
        """
        return await self._threads.run(partial(self._complete, _lacking(push, stored)))

    async def expire(self) -> None:
        """Forget abandoned pushes, and remove content that none has continued for long."""
        abandoned = self._clock() - ABANDONED_S
        for key, push in list(self._pushes.items()):
            if push.continued_at < abandoned:
                self.end(key)
        kept = {sha256 for push in self._pushes.values() for sha256 in push.contents}
        await self._threads.run(partial(self._contents.expire, kept))

    def _find(self, sha256: str) -> Push:
        """Return a push that has a content."""
        validate_sha256(sha256)
        # The last first: a manifest with a wrong size must not hinder those opened after it.
        for push in reversed(self._pushes.values()):
            if sha256 in push.contents:
                return push
        raise NotFound(f"content {sha256[:12]}… is not being uploaded: open its version first")

    def _check_budget(self, push: Push, stored: Mapping[str, int]) -> None:
        if not self._budget_bytes:
            return
        wanted = _lacking(push, stored)
        for other in self._pushes.values():
            wanted |= _lacking(other, stored)
        used, needed = sum(stored.values()), sum(wanted.values())
        if used + needed > self._budget_bytes:
            raise Overloaded(
                f"the store of engines has {used:,} of {self._budget_bytes:,} bytes and has no "
                f"room for {needed:,} more: remove versions with 'synergai engines remove', or "
                "start the gateway with a larger --store-budget"
            )

    def _check_disk(self, needed: int) -> None:
        free = self._contents.free_bytes()
        if needed and free - needed < self._keep_free_bytes:
            raise Overloaded(
                f"the gateway's disk has {free:,} bytes free, of which uploads leave "
                f"{self._keep_free_bytes:,}, and has no room for {needed:,} more: remove versions "
                "with 'synergai engines remove', or free space in its state directory"
            )

    def _append(self, sha256: str, offset: int, data: bytes, size: int) -> int:
        # Versions that are opened at the same time may have more content than fits on the disk.
        self._check_disk(len(data))
        return self._contents.append(sha256, offset, data, size)

    def _missing(self, lacking: Mapping[str, int]) -> list[Missing]:
        """Return the part of the content that the storage lacks."""
        return [
            Missing(sha256, size, self._contents.received(sha256))
            for sha256, size in lacking.items()
            if not self._contents.verify(sha256, size)
        ]

    def _complete(self, lacking: Mapping[str, int]) -> list[tuple[str, Path | None]]:
        found = []
        for sha256, size in lacking.items():
            path = self._contents.complete(sha256)
            if path is not None and path.stat().st_size != size:
                raise InvalidInput(wrong_size(sha256, size))
            found.append((sha256, path))
        return found


def wrong_size(sha256: str, size: int) -> str:
    """Return the fault of a manifest with a wrong size of a content."""
    return f"the manifest is wrong: the content {sha256[:12]}… does not have {size:,} bytes"


def _lacking(push: Push, stored: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the contents of a push that the store lacks."""
    return {sha256: size for sha256, size in push.contents.items() if sha256 not in stored}
