"""Non-interactive calls of the board's programs, ``nvpmodel`` and ``jetson_clocks``."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.files import MachineFiles

_MODE: Final = re.compile(r"^NV Power Mode: *(\S+)[ \t]*\n\s*(\d+)[ \t]*$", re.MULTILINE)
_ERROR: Final = re.compile(r"^NVPM (?:WARN|ERROR): *(.+)$", re.MULTILINE)
NVPMODEL: Final = "/usr/sbin/nvpmodel"
_JETSON_CLOCKS: Final = "/usr/bin/jetson_clocks"
_REBOOT: Final = "reboot required"
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_KILL_WAIT_S: Final = 2.0
"""Limit on the wait for a killed program, which may hang in the kernel."""


class ProgramFailed(Exception):
    """A program could not be started, failed, or timed out."""


@dataclass(frozen=True)
class BoardPrograms:
    """Runs the board's programs, with limits of time; taking cores offline is slow."""

    files: MachineFiles
    query_s: float = 4.0
    switch_s: float = 30.0

    def mode(self) -> tuple[int, str]:
        """Return the id and name of the mode, as ``nvpmodel -q`` prints them.

        Other lines, including errors, are ignored: without root it cannot read every file, but
        still prints the mode.
        """
        output, _ = self._run([NVPMODEL, "-q"], self.query_s)
        found = _MODE.search(output)
        if found is None:
            raise ProgramFailed("nvpmodel -q printed no mode")
        return int(found[2]), found[1]

    def set_mode(self, number: int) -> str:
        """Request a mode; return the program's error, or an empty string.

        Standard input is closed, so that a reboot prompt is never confirmed.
        """
        try:
            output, status = self._run([NVPMODEL, "-m", str(number)], self.switch_s)
        except ProgramFailed as error:
            return str(error)
        if _REBOOT in output.lower():
            return "nvpmodel needs a reboot"
        if status == 0:
            return ""
        errors = _ERROR.findall(output)
        return f"nvpmodel exited with status {status}: {errors[-1] if errors else 'no message'}"

    def has_nvpmodel(self) -> bool:
        """Return whether the board has ``nvpmodel``; a container often lacks it."""
        return self.files.exists(NVPMODEL)

    def has_jetson_clocks(self) -> bool:
        """Return whether the board has ``jetson_clocks``."""
        return self.files.exists(_JETSON_CLOCKS)

    def jetson_clocks(self, *arguments: str) -> None:
        """Run ``jetson_clocks``."""
        output, status = self._run([_JETSON_CLOCKS, *arguments], self.switch_s)
        if status != 0:
            raise ProgramFailed(
                f"jetson_clocks exited with status {status}: {output.strip()[-200:]}"
            )

    def _run(self, command: Sequence[str], limit_s: float) -> tuple[str, int]:
        program, *arguments = command
        try:
            process = subprocess.Popen(
                [str(self.files.path(program)), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=_ENVIRONMENT,
                start_new_session=True,  # so that its child processes can be killed with it
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise ProgramFailed(f"cannot run {program}: {error.strerror}") from error
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_KILL_WAIT_S)
            raise ProgramFailed(
                f"{' '.join(command)} timed out after {limit_s:g} s and was killed"
            ) from None
        return output, process.returncode
