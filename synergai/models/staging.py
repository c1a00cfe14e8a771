"""Hidden folders in a model directory, in which engines are made before they are put in place.

A process that is killed leaves its folder behind. Whoever makes one next clears such folders away:
each is locked by the process that works in it, and a lock goes with its process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = ".making-"
"""Readers of the model directory skip names that begin with a dot."""
_REPLACED: Final = "replaced"


@contextmanager
def staging_folder(models: Path, name: str) -> Iterator[Path]:
    """An empty folder for this block alone, beside the engines; it vanishes with the block.

    Args:
        models: the model directory.
        name: of what is made; it shows in the folder's name.

    Raises:
        OSError: the model directory cannot be written to.
    """
    remove_stale(models)
    staging, lock = _create_locked(models, name)
    try:
        yield staging
    finally:
        with suppress(OSError):  # what cannot be put back now stays for whoever makes one next
            _restore_replaced(staging, models)
            shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)


def install_staged(staging: Path, staged: Path, models: Path) -> None:
    """Have `staged` be the engine of its name, in place of an older one.

    Args:
        staging: the staging folder, which receives the older one.
        staged: the engine's folder in it.
        models: the model directory.

    Raises:
        OSError: it cannot be.
    """
    target = models / staged.name
    if target.exists():
        replaced = staging / _REPLACED
        replaced.mkdir()
        target.rename(replaced / staged.name)
    staged.rename(target)


def remove_stale(models: Path) -> None:
    """Remove the workshops of processes that are gone."""
    for staging in models.glob(f"{PREFIX}*"):
        # In use, or somebody else's, or on a file system that knows no locks: left alone.
        with suppress(OSError), _locked(staging):
            _restore_replaced(staging, models)
            shutil.rmtree(staging)


def _restore_replaced(staging: Path, models: Path) -> None:
    """Bring back an engine that was taken away, if none has come in its place."""
    for engine in (staging / _REPLACED).glob("*"):
        target = models / engine.name
        if not target.exists():
            engine.rename(target)


@contextmanager
def _locked(staging: Path) -> Iterator[None]:
    folder = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(folder)


def _create_locked(models: Path, name: str) -> tuple[Path, int]:
    """A new folder, and the descriptor that keeps it locked."""
    while True:
        staging = Path(mkdtemp(prefix=f"{PREFIX}{name}-", dir=models))
        # Before it is locked it looks abandoned, so that another process may just clear it away.
        with suppress(FileNotFoundError):
            folder = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # where locks are not known, nobody clears either
                fcntl.flock(folder, fcntl.LOCK_EX)
            if staging.exists():
                return staging, folder
            os.close(folder)
