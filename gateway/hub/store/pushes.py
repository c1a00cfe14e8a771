"""Versions that clients are pushing, and the room that is kept for them.

What a push has received is in a folder of its own: another client cannot damage it, nor publish it
under another name.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Struct

from synergai.errors import InvalidInput, NotFound, Overloaded
from synergai.models.contents import Contents
from synergai.models.manifest import content_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from gateway.hub.store.files import Threads
    from synergai.models.manifest import Manifest


KEEP_FREE_BYTES: Final = 512 << 20
"""Space that pushes leave on the disk of the state directory, which has the journal as well."""
ABANDONED_S: Final = 3600.0
"""Time after which no room is kept for a push that was not continued; what it has sent stays."""
_MAX_PUSHES: Final = 64
"""Pushes of one client; with a further one, its oldest is no longer continued."""


class PushKey(NamedTuple):
    """Identity of a push: the client's name, and what it pushes."""

    pusher: str
    engine: str
    version: int
    digest: str

    @property
    def folder(self) -> str:
        """Name of its folder, the same after a restart."""
        return content_digest(msgspec.json.encode(self))


class Missing(Struct, frozen=True):
    """Content that the store lacks: its SHA-256, size, and the bytes received so far."""

    sha256: str
    size: int
    received: int


class Push:
    """A version that a client is pushing.

    Attributes:
        continued_at: when it was begun or continued, in monotonic seconds.
    """

    received: Contents

    def __init__(self, data: bytes, manifest: Manifest) -> None:
        self.data = data
        self.manifest = manifest
        self.contents = manifest.contents
        self.continued_at = 0.0


class Pushes:
    """The versions that clients are pushing, and what was received of them."""

    def __init__(
        self,
        folder: Path,
        threads: Threads,
        *,
        budget_bytes: int = 0,
        keep_free_bytes: int = KEEP_FREE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
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

    async def remove(self, key: PushKey) -> None:
        """End a push whose version was published."""
        self.end(key)
        await self._threads.run(
            partial(shutil.rmtree, self._folder / key.folder, ignore_errors=True)
        )

    async def begin_push(
        self, key: PushKey, push: Push, readable: Mapping[str, int], stored: Mapping[str, int]
    ) -> list[Missing]:
        """Begin or continue a push; return the content that is to be uploaded.

        That is all but what the client may read; `readable` and `stored` are sizes by SHA-256.
        """
        self.end(key)
        self._check_budget(push, stored)
        own = [each for each in self._pushes if each.pusher == key.pusher]
        if len(own) >= _MAX_PUSHES:
            self.end(min(own, key=lambda each: self._pushes[each].continued_at))
        push.received = Contents(self._folder / key.folder)
        push.continued_at = self._clock()
        self._pushes[key] = push  # at once: other pushes have to count it
        try:
            missing = await self._threads.run(
                partial(_missing, push.received, _lacking(push, readable))
            )
            needed = sum(each.size - each.received for each in missing)
            await self._threads.run(partial(self._check_disk, push.received, needed))
        except BaseException:
            if self._pushes.get(key) is push:
                self.end(key)
            raise
        return missing

    async def append(self, key: PushKey, sha256: str, offset: int, data: bytes) -> int:
        """Append to content of a push; return the bytes received so far."""
        push = self._pushes.get(key)
        if push is None or sha256 not in push.contents:
            raise NotFound(f"content {sha256[:12]}… is not being uploaded: open its version first")
        push.continued_at = self._clock()
        size = push.contents[sha256]
        received = await self._threads.run(
            partial(self._append, push.received, sha256, offset, data, size)
        )
        if received == size and not await self._threads.run(
            partial(push.received.verify, sha256, size)
        ):
            raise InvalidInput(
                f"the content that was uploaded as {sha256[:12]}… has another digest: the file "
                "changed during the push, or was damaged on its way; push it again"
            )
        return received

    async def complete(
        self, push: Push, readable: Mapping[str, int]
    ) -> list[tuple[str, Path | None]]:
        """Return the files of content that the client had to upload; None for an incomplete one."""
        lacking = _lacking(push, readable)
        return await self._threads.run(
            lambda: [(sha256, push.received.complete(sha256)) for sha256 in lacking]
        )

    async def expire(self) -> None:
        """Forget abandoned pushes, and remove content that none has continued for long."""
        abandoned = self._clock() - ABANDONED_S
        for key, push in list(self._pushes.items()):
            if push.continued_at < abandoned:
                self.end(key)
        await self._threads.run(partial(self._expire, {key.folder for key in self._pushes}))

    def _expire(self, kept: set[str]) -> None:
        if not self._folder.exists():
            return
        for folder in self._folder.iterdir():
            if folder.name not in kept:
                Contents(folder).expire()
                with suppress(OSError):  # it has content
                    folder.rmdir()

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

    def _check_disk(self, received: Contents, needed: int) -> None:
        free = received.free_bytes()
        if needed and free - needed < self._keep_free_bytes:
            raise Overloaded(
                f"the gateway's disk has {free:,} bytes free, and uploads leave "
                f"{self._keep_free_bytes:,}, and has no room for {needed:,} more: remove versions "
                "with 'synergai engines remove', or free space in its state directory"
            )

    def _append(self, received: Contents, sha256: str, offset: int, data: bytes, size: int) -> int:
        # Versions that are opened at the same time may have more content than fits on the disk.
        self._check_disk(received, len(data))
        return received.append(sha256, offset, data, size)


def _missing(received: Contents, lacking: Mapping[str, int]) -> list[Missing]:
    return [
        Missing(sha256, size, received.received(sha256))
        for sha256, size in lacking.items()
        if not received.verify(sha256, size)
    ]


def _lacking(push: Push, stored: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of the contents of a push that are not stored."""
    return {sha256: size for sha256, size in push.contents.items() if sha256 not in stored}
