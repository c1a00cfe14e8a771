"""Engines that were fetched from the gateway's store, in the agent's state directory.

Content is received next to the engines, and linked into the folder of each version that has it. A
version's folder appears at once, with all of its files. All methods block: call them in threads.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, Overloaded
from synergai.models.contents import Contents
from synergai.models.directories import ModelDirectories
from synergai.names import validate_engine
from synergai.runtime.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from synergai.domain import EngineName
    from synergai.models.manifest import Manifest

KEEP_FREE_BYTES: Final = 256 << 20
"""Space that fetched engines leave on the disk."""
FOLDER: Final = "fetched"
"""Directory of the engines in the state directory."""
_CONTENTS: Final = ".contents"
_DIGESTS: Final = ".digests"
_NEW: Final = ".new"
_OLD: Final = ".old"


class FetchedEngines:
    """The fetched engines, and their content; without a budget, only what is placed is kept."""

    def __init__(
        self, root: Path, budget_bytes: int = 0, keep_free_bytes: int = KEEP_FREE_BYTES
    ) -> None:
        self._root = root
        self._budget_bytes = budget_bytes
        self._keep_free_bytes = keep_free_bytes
        self.contents = Contents(root / _CONTENTS)

    def installed(self) -> dict[EngineName, str]:
        """Return the digests of the installed versions; empty for one without a known digest."""
        found: dict[EngineName, str] = {}
        if not self._root.is_dir():
            return found
        for folder in self._root.iterdir():
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            for version in folder.iterdir():
                with suppress(InvalidInput):
                    engine = validate_engine(f"{folder.name}/{version.name}")
                    digest = self._digest_file(engine)
                    found[engine] = digest.read_text() if digest.exists() else ""
        return found

    def install(self, engine: EngineName, digest: str, manifest: Manifest) -> None:
        """Install a version whose content is complete, in place of another one."""
        target = self._folder(engine)
        new = self._root / _NEW
        shutil.rmtree(new, ignore_errors=True)
        for file in manifest.files:
            path = new / file.path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = self.contents.complete(file.sha256)
            if content is None:
                raise FileNotFoundError(0, "content is missing", file.path)
            try:
                os.link(content, path)
            except OSError:  # a file system without links, or too many of them
                shutil.copyfile(content, path)
        self.remove(engine)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.rename(target)
        self._digest_file(engine).parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self._digest_file(engine), digest, mode=0o600)

    def remove(self, engine: EngineName) -> None:
        """Remove a version; engine hosts that have loaded it are not affected."""
        target = self._folder(engine)
        self._digest_file(engine).unlink(missing_ok=True)
        if target.exists():
            old = self._root / _OLD
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
            shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):  # other versions are in it
            target.parent.rmdir()

    def make_room(self, missing: Mapping[str, int], placed: Collection[str]) -> None:
        """Evict content that is not placed, the least recently used first, for missing content."""
        sizes = self.contents.sizes()
        needed = sum(size - sizes.get(sha256, 0) for sha256, size in missing.items())
        removable = [sha256 for sha256 in sizes if sha256 not in placed]
        while not self._fits(needed):
            if not removable:
                raise Overloaded(self._full(needed))
            self.contents.remove(removable.pop(0))

    def evict(self, placed: Collection[str]) -> None:
        """Remove content that is not placed, unless there is a budget within which it may stay.

        What an agent that was killed has left of an installation goes as well.
        """
        for name in (_NEW, _OLD):
            shutil.rmtree(self._root / name, ignore_errors=True)
        for unwritten in (self._root / _DIGESTS).glob(".*"):
            unwritten.unlink()
        for sha256 in self.contents.sizes():
            if sha256 not in placed and (not self._budget_bytes or not self._fits(0)):
                self.contents.remove(sha256)

    def _fits(self, needed: int) -> bool:
        used = sum(self.contents.sizes().values())
        if self._budget_bytes and used + needed > self._budget_bytes:
            return False
        return not needed or self.contents.free_bytes() - needed >= self._keep_free_bytes

    def _full(self, needed: int) -> str:
        used = sum(self.contents.sizes().values())
        if self._budget_bytes and used + needed > self._budget_bytes:
            return (
                f"{needed:,} bytes are needed, {used:,} are of placed engines, and --disk-budget "
                f"is {self._budget_bytes:,}: raise it, or place fewer versions here"
            )
        return (
            f"{needed:,} bytes are needed, and the disk of {self.contents.folder} has "
            f"{self.contents.free_bytes():,} free, of which {self._keep_free_bytes:,} are kept "
            "free: free space, or place fewer versions here"
        )

    def _folder(self, engine: EngineName) -> Path:
        return ModelDirectories(Path(), self._root).folder(engine)

    def _digest_file(self, engine: EngineName) -> Path:
        folder = self._folder(engine)
        return self._root / _DIGESTS / f"{folder.parent.name}@{folder.name}"
