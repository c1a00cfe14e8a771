"""A control group with a share of the processor: made, entered, changed, left and removed."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from synergai.errors import NotSupported
from worker_agent.power.cgroup_versions import CpuLimit, hierarchy_of
from worker_agent.power.files import Files

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class LimitedGroup:
    """A control group of this process, with a limit. A context manager: leaving removes it.

    Args:
        limit: what is in force from the start; `cpuset` must be given here if it shall ever be.
        files: the machine.
        name: the directory's name; one is made up by default.

    Raises:
        NotSupported: on construction, if the machine or our rights do not allow a group.
    """

    def __init__(self, limit: CpuLimit, files: Files | None = None, name: str = "") -> None:
        self._files = files or Files()
        self._hierarchy = hierarchy_of(self._files)
        self._name = name or f"synergai-{os.getpid()}-{secrets.token_hex(3)}"
        self._limit = limit
        self.folders: tuple[str, ...] = ()
        """The directories of the group that exist."""
        self._sweep()
        try:
            for folder in self._hierarchy.folders(self._name, cpuset=bool(limit.cpuset)):
                self._files.make_directory(folder)
                self.folders += (folder,)
                self._hierarchy.prepare(folder)
        except OSError as error:
            self.remove()
            raise NotSupported(
                f"cannot make a control group: {error.filename}: {error.strerror}; run as root, "
                "or in a systemd unit with Delegate=cpu cpuset"
            ) from error

    def enter(self) -> None:
        """Move this process in, and put the limit in force; children follow as they are made.

        Raises:
            NotSupported: the kernel refuses; the process is where it was.
        """
        try:
            for folder in self.folders:
                self._files.write(f"{folder}/cgroup.procs", str(os.getpid()))
            self._hierarchy.entered(self._limit)
            self._write(self._limit)
        except OSError as error:
            self.leave()
            raise NotSupported(
                f"cannot limit processor time: {error.filename}: {error.strerror}; the limit must "
                "be within that of the surrounding group, and with cgroup v2 no other process may "
                "be in that group (systemd-run --scope gives a group of its own)"
            ) from error

    def leave(self) -> None:
        """Move this process back to the group that it was in before."""
        for folder in self.folders:
            self._hierarchy.leaving(folder)
            parent = folder.rpartition("/")[0]
            self._files.write(f"{parent}/cgroup.procs", str(os.getpid()))

    def change(self, limit: CpuLimit) -> None:
        """Put another limit in force.

        Raises:
            NotSupported: the kernel refuses.
        """
        try:
            self._write(limit)
        except OSError as error:
            raise NotSupported(
                f"the kernel refuses a limit of {limit.cpus:g} CPUs: {error.strerror}; it must "
                "be within that of the surrounding group"
            ) from error

    def read(self) -> CpuLimit:
        """The limit that the kernel says is in force.

        Raises:
            OSError: it does not say.
        """
        limits = [self._hierarchy.read(folder) for folder in self.folders]
        return CpuLimit(limits[0].cpus, limits[-1].cpuset)

    def members(self) -> set[int]:
        """The processes in it."""
        return {
            int(pid)
            for folder in self.folders
            for pid in self._files.read(f"{folder}/cgroup.procs").split()
        }

    def remove(self) -> bool:
        """Remove it; False if somebody is still in it."""
        try:
            for folder in self.folders:
                self._files.remove_directory(folder)
                self.folders = tuple(other for other in self.folders if other != folder)
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        self.enter()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.leave()
        self.remove()

    def _sweep(self) -> None:
        """Remove what processes left that could not clean up; those in use cannot be removed."""
        for folder in self._hierarchy.own_groups():
            for left in self._files.find(folder, "synergai-*-*"):
                pid = left.rpartition("/")[2].split("-")[1]
                if not self._files.exists(f"/proc/{pid}"):
                    with contextlib.suppress(OSError):
                        self._files.remove_directory(left)

    def _write(self, limit: CpuLimit) -> None:
        for folder in self.folders:
            self._hierarchy.limit(folder, limit)
