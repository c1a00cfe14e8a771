"""A cgroup of this process with a CPU limit."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from synergai.errors import NotSupported
from worker_agent.power.cgroup_versions import CpuLimit, detect_hierarchy

if TYPE_CHECKING:
    from worker_agent.power.files import MachineFiles


class CpuCgroup:
    """Cgroup that this process can enter and leave."""

    def __init__(self, limit: CpuLimit, files: MachineFiles) -> None:
        self._files = files
        self._hierarchy = detect_hierarchy(files)
        self._limit = limit
        self.folders: tuple[str, ...] = ()
        """Directories of the group."""
        self._sweep()
        # Others know by the process when the group may be swept.
        name = f"synergai-{os.getpid()}-{secrets.token_hex(3)}"
        try:
            for folder in self._hierarchy.folders(name, cpuset=bool(limit.cpuset)):
                self._files.make_directory(folder)
                self.folders += (folder,)
                self._hierarchy.prepare(folder)
        except OSError as error:
            self.remove()
            raise NotSupported(
                f"cannot create a cgroup: {error.filename}: {error.strerror}; run as root, "
                "or in a systemd unit with Delegate=cpu cpuset"
            ) from error

    def enter(self) -> None:
        """Move this process into the group and apply the limit; new children inherit it."""
        try:
            for folder in self.folders:
                self._files.write(f"{folder}/cgroup.procs", str(os.getpid()))
            self._hierarchy.after_enter(self._limit)
            self._write(self._limit)
        except OSError as error:
            self.leave()
            raise NotSupported(
                f"cannot limit CPU time: {error.filename}: {error.strerror}; the limit must not "
                "exceed that of the parent group, and with cgroup v2 the parent group must have "
                "no other process (systemd-run --scope creates a group)"
            ) from error

    def leave(self) -> None:
        """Move this process back to its previous group."""
        for folder in self.folders:
            self._hierarchy.before_leave(folder)
            parent = folder.rpartition("/")[0]
            self._files.write(f"{parent}/cgroup.procs", str(os.getpid()))

    def change(self, limit: CpuLimit) -> None:
        """Apply another limit."""
        try:
            self._write(limit)
        except OSError as error:
            raise NotSupported(
                f"the kernel refused a limit of {limit.cpus:g} CPUs: {error.strerror}; the limit "
                "must not exceed that of the parent group"
            ) from error

    def read(self) -> CpuLimit:
        """Return the limit in force, as the kernel reports it."""
        limits = [self._hierarchy.read(folder) for folder in self.folders]
        return CpuLimit(limits[0].cpus, limits[-1].cpuset)

    def remove(self) -> bool:
        """Remove the group; return False if it still has processes."""
        try:
            for folder in self.folders:
                # Another process may have swept it, since the one that it is named after is dead.
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove_directory(folder)
                self.folders = tuple(other for other in self.folders if other != folder)
        except OSError:
            return False
        return True

    def _sweep(self) -> None:
        """Remove groups of processes that died without cleaning up."""
        for folder in self._hierarchy.own_groups():
            for left in self._files.find(folder, "synergai-*-*"):
                pid = left.rpartition("/")[2].split("-")[1]
                if not self._files.exists(f"/proc/{pid}"):
                    with contextlib.suppress(OSError):
                        self._files.remove_directory(left)

    def _write(self, limit: CpuLimit) -> None:
        for folder in self.folders:
            self._hierarchy.limit(folder, limit)
