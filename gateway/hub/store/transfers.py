"""Transfers to and from the store: versions that clients push, room for them, and a common pace.

What a push has received is in a folder of its own: another client cannot damage it, nor publish it
under another name.

The transfers of all workers and clients share one rate, so that they leave time to requests and
jobs. While anything runs on a worker, it is low enough that most requests never meet a chunk in the
gateway's loop, on the wire or in an agent.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Struct

from synergai.errors import InvalidInput, NotFound, Overloaded
from synergai.models.contents import Contents
from synergai.models.manifest import Manifest, content_digest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from gateway.hub.store.files import Threads

KEEP_FREE_BYTES: Final = 512 << 20
"""Space that pushes leave on the disk of the state directory, which has the journal as well."""
ABANDONED_S: Final = 3600.0
"""Time after which no room is kept for a push that was not continued; what it has sent stays."""
OWN: Final = "the gateway"
"""Who pushes what the gateway makes itself. No client has a name with a space."""
_OWN_PREFIX: Final = "own-"
_MAX_PUSHES: Final = 64
"""Pushes of one client; with a further one, its oldest is no longer continued."""
BYTES_PER_S: Final = 128 << 20
"""Rate of all uploads to the store and all fetches of agents together."""
BUSY_BYTES_PER_S: Final = 6 << 20
"""Rate of transfers while the fleet is busy."""
_BURST_S: Final = 0.05
"""Time that transfers may be ahead, which makes up for timers that fire late."""
_TURN_BYTES: Final = 256 << 10
"""Largest number of bytes of a turn, so that large chunks get no larger share."""
_LOOK_S: Final = 0.01
"""Interval at which transfers check whether the fleet is busy."""
_STAYS_BUSY_S: Final = 1.0
"""Time for which a fleet is treated as busy after it was: single requests leave gaps."""


class PushKey(NamedTuple):
    """Identity of a push: the client's name, and what it pushes."""

    pusher: str
    engine: str
    version: int
    digest: str

    @property
    def folder(self) -> str:
        """Name of its folder, the same after a restart."""
        return _OWN_PREFIX * (self.pusher == OWN) + content_digest(msgspec.json.encode(self))


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
        keep_free_bytes: int = KEEP_FREE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._threads = threads
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
        self, key: PushKey, push: Push, readable: Mapping[str, int]
    ) -> list[Missing]:
        """Begin or continue a push; return the content that is to be uploaded.

        That is all but what the client may read, whose sizes are given by SHA-256.
        """
        self.end(key)
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
        """Forget abandoned pushes, and remove content that none has continued for long.

        That of the gateway's own pushes goes at once.
        """
        abandoned = self._clock() - ABANDONED_S
        for key, push in list(self._pushes.items()):
            if push.continued_at < abandoned:
                self.end(key)
        await self._threads.run(partial(self._expire, {key.folder for key in self._pushes}))

    def _expire(self, kept: set[str]) -> None:
        if not self._folder.exists():
            return
        for folder in self._folder.iterdir():
            if folder.name.startswith(_OWN_PREFIX) and folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)  # what it needs, it makes again
            elif folder.name not in kept:
                Contents(folder).expire()
                with suppress(OSError):  # it has content
                    folder.rmdir()

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
    return {sha256: size for sha256, size in push.contents.items() if sha256 not in stored}


class Pacer:
    """Delays transfers to a common rate, in turns; a rate of 0 is no limit."""

    def __init__(
        self,
        bytes_per_s: float,
        busy_bytes_per_s: float,
        is_busy: Callable[[], bool],
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s or math.inf
        self._busy_bytes_per_s = min(busy_bytes_per_s or math.inf, self._bytes_per_s)
        self._is_busy = is_busy
        self._now = now
        self._sleep = sleep
        self._free_at = 0.0
        self._look_at = self._busy_until = -math.inf
        self._turn = asyncio.Lock()

    async def wait_turn(self, size: int) -> None:
        while size > 0:
            part = min(size, _TURN_BYTES)
            size -= part
            # Only the transfer whose turn it is waits for the rate, so giving up delays no other.
            async with self._turn:
                wait_s = self._free_at - self._now()
                if wait_s > 0:
                    await self._sleep(wait_s)
                now = self._now()
                start = max(self._free_at, now - _BURST_S)
                self._free_at = start + part / self._rate(now)

    def _rate(self, now: float) -> float:
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            if self._is_busy():
                self._busy_until = now + _STAYS_BUSY_S
        return self._busy_bytes_per_s if now < self._busy_until else self._bytes_per_s
