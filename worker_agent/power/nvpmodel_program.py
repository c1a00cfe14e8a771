"""The board's own programs, ``nvpmodel`` and ``jetson_clocks``, run without any way to ask back."""

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

    from worker_agent.power.files import Files

_MODE: Final = re.compile(r"^NV Power Mode: *(\S+)[ \t]*\n\s*(\d+)[ \t]*$", re.MULTILINE)
_COMPLAINT: Final = re.compile(r"^NVPM (?:WARN|ERROR): *(.+)$", re.MULTILINE)
_REBOOT: Final = "reboot required"
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_DYING_S: Final = 2.0
"""A killed program that hangs in the kernel is waited for so long, and then left to it."""


class ProgramFailed(Exception):
    """A program of the board could not be started, failed, or did not end in time."""


@dataclass(frozen=True, slots=True)
class BoardPrograms:
    """Runs the board's programs.

    Attributes:
        files: the machine.
        query_s: how long a question may take.
        switch_s: how long a switch may take: taking cores off line is slow.
    """

    files: Files
    query_s: float = 4.0
    switch_s: float = 30.0

    def mode(self) -> tuple[int, str]:
        """Number and name of the mode, as ``nvpmodel -q`` tells.

        Lines about anything else, errors included, are normal: without root's rights it cannot
        read all, and still answers.

        Raises:
            ProgramFailed: it gives no answer.
        """
        output, _ = self._run(["/usr/sbin/nvpmodel", "-q"], self.query_s)
        found = _MODE.search(output)
        if found is None:
            raise ProgramFailed("nvpmodel -q names no mode")
        return int(found[2]), found[1]

    def set_mode(self, number: int) -> str:
        """Ask for a mode; returns the program's complaint, or an empty text.

        Its input is closed, so that a question for a reboot is never answered.
        """
        try:
            output, status = self._run(["/usr/sbin/nvpmodel", "-m", str(number)], self.switch_s)
        except ProgramFailed as error:
            return str(error)
        if _REBOOT in output.lower():
            return "nvpmodel says that it needs a reboot"
        if status == 0:
            return ""
        complaints = _COMPLAINT.findall(output)
        return f"nvpmodel ended with status {status}: {complaints[-1] if complaints else 'no word'}"

    def has_clocks(self) -> bool:
        """Whether the board has ``jetson_clocks``."""
        return self.files.exists(_CLOCKS)

    def clocks(self, *arguments: str) -> None:
        """Run ``jetson_clocks``.

        Raises:
            ProgramFailed: it failed.
        """
        output, status = self._run([_CLOCKS, *arguments], self.switch_s)
        if status != 0:
            raise ProgramFailed(
                f"jetson_clocks ended with status {status}: {output.strip()[-200:]}"
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
                start_new_session=True,  # what it starts in turn ends with it
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise ProgramFailed(f"{program} cannot be run: {error.strerror}") from error
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_DYING_S)
            raise ProgramFailed(
                f"{' '.join(command)} did not end within {limit_s:g} s and was killed"
            ) from None
        return output, process.returncode


_CLOCKS: Final = "/usr/bin/jetson_clocks"
