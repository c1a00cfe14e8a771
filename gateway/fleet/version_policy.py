"""Policies for requests that name no version, and the file that keeps them."""

from __future__ import annotations

import asyncio
import random
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from synergai.errors import InvalidInput
from synergai.runtime.state_file import StateFile
from synergai.versions import validate_version

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

POLICY_FILE: Final = "version-policies.json"
"""Name of the file in the gateway's state directory."""
_HASH_BYTES: Final = 8


class VersionPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The policy of one engine.

    Requests without a version get `base`, the pinned one or the old one of a rollout; empty means
    the highest usable one. A share of them, 0 to 1, gets `target`. The reason is why the last
    rollout was rolled back.
    """

    base: str = ""
    target: str = ""
    share: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        for version in (self.base, self.target):
            if version:
                validate_version(version)
        if not 0.0 <= self.share <= 1.0:
            raise InvalidInput(f"the share must be from 0 % to 100 %, not {self.share:.6g}")


LATEST: Final = VersionPolicy()
"""Without a policy, requests get the highest usable version."""


def draw(name: str, target: str, request_id: str) -> float:
    """Return a number from 0 to 1 (exclusive): below the share, a request gets the target.

    The same id of a request always gives the same number, so that growing the share only moves
    requests from the old version to the new one. Other targets give other numbers: it is not
    always the same requests that get a new version first. Without an id, the number is random.
    """
    if not request_id:
        return random.random()
    text = f"{name}/{target}/{request_id}".encode()
    return int.from_bytes(blake2b(text, digest_size=_HASH_BYTES).digest()) / 256**_HASH_BYTES


class PolicyFile:
    """The policies of all engines that have one, in the gateway's state directory."""

    def __init__(self, state: Path) -> None:
        self._file = StateFile(
            state / POLICY_FILE,
            dict[str, VersionPolicy],
            "Move it away to serve the highest version of every engine",
        )
        self._writing = asyncio.Lock()

    def read(self) -> dict[str, VersionPolicy]:
        """Return the policies by name of the engine."""
        return self._file.read() or {}

    async def write(self, policies: Mapping[str, VersionPolicy]) -> None:
        """Write the policies, durably."""
        async with self._writing:
            await asyncio.to_thread(self._file.write, dict(policies))
