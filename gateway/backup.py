"""Backups of what a gateway keeps, made while it runs, and their restore.

A backup is a folder with the files of a state directory that have to outlive it. The order in which
they are copied keeps it consistent: a job is in the journal after its inputs, and its results are
on disk before the journal counts them, so the journal comes first. Policies come after the store,
whose versions they hold back.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.fleet.versions import POLICY_FILE, PolicyFile
from gateway.journal import archive
from gateway.journal.data_store import DIRECTORY
from gateway.journal.files import CLUSTER, DATABASE
from synergai.errors import InvalidInput, NotFound
from synergai.profiles.store import DictionaryStore
from synergai.runtime.files import StateFile, own_like, sync_path
from synergai.runtime.paths import dictionary_path

if TYPE_CHECKING:
    from collections.abc import Iterator

_FOLDERS: Final = (
    DIRECTORY,
    "store-id",  # before the store, whose id it repeats
    "store/store-id",
    "store/engines",  # before the content that the records name
    "store/content",
)
_RESTORED: Final = (DATABASE, DIRECTORY, "store", "dictionary.db", POLICY_FILE)
"""What a restore replaces: everything whose name begins so."""
_LIST: Final = "backup.json"
_SETTINGS: Final = "settings"
_TEMPORARY: Final = ".new-"
"""Begins the names of files that are being written."""
_UNSEEN_EPOCHS: Final = 1000
"""More than the starts of a gateway since its last backup. The directory may be another one, whose
gateway has started on its own: it does not tell the last epoch."""


class Backup(Struct, frozen=True, kw_only=True):
    """What a backup is of, and the sizes of all of its files by path."""

    made_at: float
    state: str
    files: dict[str, int]
    has_journal: bool

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


def back_up(state: Path, target: Path, settings: Path | None = None) -> Backup:
    """Copy what a gateway keeps to a new folder, which appears complete.

    The gateway may be running. A journal in PostgreSQL is left to PostgreSQL's tools.

    Args:
        settings: a folder to copy as well, such as ``/etc/synergai``.
    """
    if not any((state / name).exists() for name in (DATABASE, CLUSTER)):
        raise NotFound(f"there is no journal in {state}; name the gateway's directory with --state")
    if target.exists():
        raise InvalidInput(f"{target} already exists; back up to a new folder")
    with _new_folder(target.parent, f".{target.name}-") as copy:
        has_journal = not (state / CLUSTER).exists()
        if has_journal:
            archive.copy_database(state / DATABASE, copy / DATABASE)
        for name in _FOLDERS:
            _copy_tree(state / name, copy / name)
        if dictionary_path(state).exists():
            with DictionaryStore(dictionary_path(state)) as dictionary:
                dictionary.copy(dictionary_path(copy))
        _copy_tree(state / POLICY_FILE, copy / POLICY_FILE)
        if settings is not None:
            if not settings.is_dir():
                raise NotFound(f"there is no folder {settings} with settings")
            _copy_tree(settings, copy / _SETTINGS)
        backup = Backup(
            made_at=time.time(),
            state=str(state.absolute()),
            files=_sizes(copy),
            has_journal=has_journal,
        )
        _list_of(copy).write(backup)
        os.sync()
        copy.rename(target)
        sync_path(target.parent)
    return backup


def restore(state: Path, source: Path, settings: Path | None = None) -> Backup:
    """Replace what a stopped gateway keeps by a backup, which is checked first.

    The files before it move to a folder ``replaced-…`` of the state directory, those of the
    settings to one beside them. The gateway continues in a new epoch, so that reports on earlier
    assignments are rejected.

    Args:
        settings: where to put the settings of the backup; None to leave them.
    """
    backup = _read(source)
    if not backup.has_journal and (state / DATABASE).exists():
        raise InvalidInput(
            f"{source} is of a gateway with its journal in PostgreSQL, and {state} has a journal "
            "of its own; restore it to another directory"
        )
    if settings is not None and not (source / _SETTINGS).is_dir():
        raise InvalidInput(f"{source} has no settings; leave out --settings")
    descriptor = archive.lock_stopped(state)
    try:
        with _new_folder(state, ".restored-") as staged:
            for path in source.iterdir():
                if path.name not in (_LIST, _SETTINGS):
                    _copy_tree(path, staged / path.name)
            _check(staged, source)
            replaced = [*_RESTORED, CLUSTER]
            if not backup.has_journal:
                replaced = [name for name in replaced if name not in (DATABASE, CLUSTER)]
            os.sync()
            archive.replace_files(state, staged, replaced, _UNSEEN_EPOCHS)
    finally:
        os.close(descriptor)
    if settings is not None:
        if settings.exists():
            settings.rename(f"{settings}.replaced-{int(time.time())}")
        _copy_tree(source / _SETTINGS, settings)
    return backup


def _read(source: Path) -> Backup:
    """Return the list of a backup, all of whose files are there."""
    backup = _list_of(source).read()
    if backup is None:
        raise NotFound(f"there is no backup in {source}: it has no {_LIST}")
    found = _sizes(source)
    for name, size in backup.files.items():
        if found.get(name) != size:
            what = "is missing" if name not in found else f"has {found[name]:,} bytes, not {size:,}"
            raise InvalidInput(f"the backup {source} is incomplete: {name} {what}")
    return backup


def _check(staged: Path, source: Path) -> None:
    """Check the files of a backup as a gateway would at its start."""
    if (staged / DATABASE).exists() and (fault := archive.find_fault(staged / DATABASE)):
        raise InvalidInput(f"{source / DATABASE} cannot be restored: {fault}")
    PolicyFile(source).read()
    if dictionary_path(staged).exists():
        with DictionaryStore(dictionary_path(staged)) as store:
            store.check(thorough=True)


def _list_of(folder: Path) -> StateFile[Backup]:
    return StateFile(folder / _LIST, Backup, "Use another backup")


def _sizes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.name != _LIST
    }


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a file or folder, if it exists; its files may be written and removed meanwhile."""
    try:
        with suppress(FileNotFoundError):
            if not source.is_dir():
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copy2(source, target)  # with its time, from which retention counts
                own_like(source, target)  # of settings; what is restored is its directory's owner's
                return
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in source.iterdir():
                if not path.name.startswith(_TEMPORARY):
                    _copy_tree(path, target / path.name)
            shutil.copystat(source, target)
            own_like(source, target)
    except OSError as error:
        raise InvalidInput(f"cannot copy {source} to {target}: {error.strerror}") from error


@contextmanager
def _new_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yield a new private folder; it is removed if it is still there at the end."""
    try:
        folder = Path(mkdtemp(prefix=prefix, dir=parent))
    except OSError as error:
        raise InvalidInput(f"cannot write {parent}: {error.strerror}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
