"""Hidden staging folders in a model directory, where engines are built before installation.

A killed process leaves its folder behind; the next one to stage an engine removes it. Each folder
is locked by the process that uses it, and the kernel releases the lock when the process ends.
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
_REPLACED_VERSIONS: Final = "replaced-versions"


@contextmanager
def staging_folder(models: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder for this block, removed afterwards."""
    remove_stale(models)
    staging, lock = _create_locked(models, name)
    try:
        yield staging
    finally:
        with suppress(OSError):  # otherwise restored by `remove_stale` later
            _restore_replaced(staging, models)
            shutil.rmtree(staging, ignore_errors=True)
        os.close(lock)


def install_staged(staging: Path, staged: Path, models: Path) -> None:
    """Install `staged`, which is an engine's folder or that of a version in it."""
    name = staged.relative_to(staging)
    target = models / name
    if target.exists():
        is_version = len(name.parts) > 1
        replaced = staging / (_REPLACED_VERSIONS if is_version else _REPLACED) / name
        replaced.parent.mkdir(parents=True)
        target.rename(replaced)
    target.parent.mkdir(exist_ok=True)
    staged.rename(target)


def remove_stale(models: Path) -> None:
    """Remove the staging folders of processes that have ended."""
    for staging in models.glob(f"{PREFIX}*"):
        # Skip folders that are in use, not ours, or on a file system without locks.
        with suppress(OSError), _locked(staging):
            _restore_replaced(staging, models)
            shutil.rmtree(staging)


def _restore_replaced(staging: Path, models: Path) -> None:
    """Move replaced engines and versions back unless new ones were installed."""
    for folder, pattern in ((_REPLACED, "*"), (_REPLACED_VERSIONS, "*/*")):
        for replaced in (staging / folder).glob(pattern):
            target = models / replaced.relative_to(staging / folder)
            if not target.exists():
                target.parent.mkdir(exist_ok=True)
                replaced.rename(target)


@contextmanager
def _locked(staging: Path) -> Iterator[None]:
    folder = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(folder)


def _create_locked(models: Path, name: str) -> tuple[Path, int]:
    """Return a new folder and the descriptor that keeps it locked."""
    while True:
        staging = Path(mkdtemp(prefix=f"{PREFIX}{name}-", dir=models))
        # Until it is locked, another process may remove it as stale.
        with suppress(FileNotFoundError):
            folder = os.open(staging, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # without locks, `remove_stale` skips it too
                fcntl.flock(folder, fcntl.LOCK_EX)
            if staging.exists():
                return staging, folder
            os.close(folder)
