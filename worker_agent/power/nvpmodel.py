"""Power modes of NVIDIA Jetson boards, switched by non-interactive calls of their programs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.errors import NotSupported
from worker_agent.power.controller import (
    PowerMode,
    Reading,
    SwitchResult,
    SwitchTiming,
    find_mode,
    select_modes,
    switch,
)
from worker_agent.power.files import MachineFiles, parse_cpus
from worker_agent.power.nvpmodel_conf import NO_CAP, BoardModes, PowerModel, Setting, parse_conf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CONF: Final = "/etc/nvpmodel.conf"
_CPU: Final = "/sys/devices/system/cpu"
_ONLINE: Final = f"{_CPU}/online"
_TPC_MASK: Final = "/sys/devices/gpu.0/tpc_pg_mask"
_NAMED: Final = 3
"""Faults of the file that a message names."""
_BOUNDS: Final = ("MIN_FREQ", "MAX_FREQ")
_CLOCKS_STORE: Final = "/run/synergai-clocks.conf"

_MODE: Final = re.compile(r"^NV Power Mode: *(\S+)[ \t]*\n\s*(\d+)[ \t]*$", re.MULTILINE)
_ERROR: Final = re.compile(r"^NVPM (?:WARN|ERROR): *(.+)$", re.MULTILINE)
_NVPMODEL: Final = "/usr/sbin/nvpmodel"
_JETSON_CLOCKS: Final = "/usr/bin/jetson_clocks"
_REBOOT: Final = "reboot required"
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_KILL_WAIT_S: Final = 2.0
"""Limit on the wait for a killed program, which may hang in the kernel."""

_log = logging.getLogger(__name__)


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
        output, _ = self._run([_NVPMODEL, "-q"], self.query_s)
        found = _MODE.search(output)
        if found is None:
            raise ProgramFailed("nvpmodel -q printed no mode")
        return int(found[2]), found[1]

    def set_mode(self, number: int) -> str:
        """Request a mode; return the program's error, or an empty string.

        Standard input is closed, so that a reboot prompt is never confirmed.
        """
        try:
            output, status = self._run([_NVPMODEL, "-m", str(number)], self.switch_s)
        except ProgramFailed as error:
            return str(error)
        if _REBOOT in output.lower():
            return "nvpmodel needs a reboot"
        if status == 0:
            return ""
        errors = _ERROR.findall(output)
        return f"nvpmodel exited with status {status}: {errors[-1] if errors else 'no message'}"

    def jetson_clocks(self, *arguments: str) -> None:
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


class NvpmodelController:
    """Controller of the modes in ``/etc/nvpmodel.conf``, switched with NVIDIA's ``nvpmodel``.

    A mode is in force only if ``nvpmodel -q`` names it and the online cores, clock caps
    and GPU mask match its definition in the file. Modes that were not understood are left out.
    """

    def __init__(
        self,
        files: MachineFiles,
        modes: Sequence[str] = (),
        *,
        programs: BoardPrograms | None = None,
        timing: SwitchTiming | None = None,
    ) -> None:
        self._files = files
        self._programs = programs or BoardPrograms(files)
        self._timing = timing or SwitchTiming()
        self._names = tuple(modes)
        self._board = self._read_conf()
        select_modes(self.modes(), self._names)

    def modes(self) -> Sequence[PowerMode]:
        """Return the modes, ordered by the board's ids."""
        in_force = self._tpc_mask()
        folders = self._files.find(_CPU, "cpu[0-9]*")
        present = [int(folder[len(f"{_CPU}/cpu") :]) for folder in folders]
        modes = [
            PowerMode(
                name=model.name,
                cores=model.cores(present),
                max_mhz=model.max_khz / 1000,
                budget_w=model.budget_w,
                memory_mhz=model.memory_hz / 1e6,
                number=model.number,
                refused="" if model.tpc_mask == in_force else _needs_reboot(model, in_force),
            )
            for _, model in sorted(self._board.models.items())
        ]
        return select_modes(modes, self._names)

    def read(self) -> Reading:
        """Return the mode that ``nvpmodel -q`` names, if the board's files match it."""
        try:
            number, name = self._programs.mode()
        except ProgramFailed as error:
            return Reading("", str(error))
        model = self._board.models.get(number)
        if model is None or model.name != name:
            return Reading("", f"nvpmodel reports mode {number} {name}, which is not in {CONF}")
        if wrong := [*_cores(self._files, model), *_values(self._files, self._board, model)]:
            return Reading("", f"nvpmodel reports {name}, but {'; '.join(wrong)}")
        return Reading(name)

    def switch(self, mode: str) -> SwitchResult:
        """Switch without a reboot; see `PowerController.switch`."""
        found = find_mode(self.modes(), mode)
        return switch(found.name, read=self.read, apply=self._apply, timing=self._timing)

    def close(self) -> None:
        """Leave the board in its mode."""

    def _apply(self, name: str) -> str:
        number = next(n for n, model in self._board.models.items() if model.name == name)
        pinned = self._clocks_are_pinned()
        if pinned:
            self._unpin()
        complaint = self._programs.set_mode(number)
        if pinned:
            self._pin()
        return complaint

    def _clocks_are_pinned(self) -> bool:
        """Return whether ``jetson_clocks`` pins all clocks at their maximum.

        Detected at the GPU: some modes pin the CPU clock themselves, but none the GPU clock.
        """
        gpu = self._board.parameters.get("GPU")
        if gpu is None or not self._files.exists(_JETSON_CLOCKS):
            return False
        for kernel in ("", "_KNEXT"):
            bounds = [gpu.arguments.get(f"{bound}{kernel}", "") for bound in _BOUNDS]
            with contextlib.suppress(OSError, ValueError):
                lowest, highest = (int(self._files.read(bound)) for bound in bounds)
                return lowest == highest
        return False

    def _unpin(self) -> None:
        # Without a stored state there is nothing to restore: the mode sets its lower bounds.
        if self._files.exists(_CLOCKS_STORE):
            self._clocks("--restore", str(self._files.path(_CLOCKS_STORE)))

    def _pin(self) -> None:
        store = self._files.path(_CLOCKS_STORE)
        with contextlib.suppress(OSError):
            store.unlink()  # otherwise jetson_clocks prompts before overwriting it
        self._clocks("--store", str(store))
        self._clocks()

    def _clocks(self, *arguments: str) -> None:
        try:
            self._programs.jetson_clocks(*arguments)
        except ProgramFailed as error:
            _log.warning("%s", error)

    def _tpc_mask(self) -> int:
        """Return the GPU mask in force; if unreadable, that of the mode in force."""
        try:
            return int(self._files.read(_TPC_MASK), 0)
        except (OSError, ValueError):
            pass
        number = self._board.default
        with contextlib.suppress(ProgramFailed):
            number, _ = self._programs.mode()
        model = None if number is None else self._board.models.get(number)
        return model.tpc_mask if model else 0

    def _read_conf(self) -> BoardModes:
        if not self._files.exists(_NVPMODEL):  # as in most containers
            raise NotSupported(f"cannot switch to the modes in {CONF}: there is no {_NVPMODEL}")
        try:
            board = parse_conf(self._files.read(CONF))
        except OSError as error:
            raise NotSupported(f"cannot read {CONF}: {error.strerror}") from error
        faults = "; ".join([*board.faults[:_NAMED], *(["…"] if board.faults[_NAMED:] else [])])
        if not board.models:
            raise NotSupported(f"{CONF}: {faults}")
        if faults:
            names = ", ".join(model.name for model in board.models.values())
            _log.warning("%s: %s; the modes that were understood are: %s", CONF, faults, names)
        return board


def _needs_reboot(model: PowerModel, in_force: int) -> str:
    return (
        f"needs a reboot, because it changes the powered parts of the GPU (mask {model.tpc_mask} "
        f"instead of {in_force}); run nvpmodel -m {model.number} in a maintenance window"
    )


def _cores(files: MachineFiles, model: PowerModel) -> Iterator[str]:
    """Yield where the online cores, which must be readable, differ from `model`."""
    try:
        online = parse_cpus(files.read(_ONLINE))
    except (OSError, ValueError):
        yield f"cannot read {_ONLINE}"
        return
    for core, wanted in model.online.items():
        if (core in online) != wanted:
            yield f"core {core} is {'offline' if wanted else 'online'}"


def _values(files: MachineFiles, board: BoardModes, model: PowerModel) -> Iterator[str]:
    """Yield where values differ from `model`.

    Files that do not exist in this kernel or that only root can read are skipped, except that the
    CPU clock must be readable if the mode sets it.
    """
    clocks = [each for each in model.settings if _is_cpu_clock(each, board)]
    clock_seen = not clocks
    for setting in model.settings:
        wanted = setting.number
        # Skip lower bounds: jetson_clocks raises them to the upper ones.
        if wanted is None or setting.argument.startswith("MIN_FREQ"):
            continue
        try:
            path = _path(files, board, setting)
            if path is None:
                continue
            found = int(files.read(path), 0)
        except (OSError, ValueError):
            continue
        if board.parameters[setting.parameter].kind == "CLOCK":
            clock_seen = clock_seen or setting in clocks
            right = _is_cap(found, files, board, setting, wanted)
        else:
            right = found == wanted
        if not right:
            yield f"{setting.parameter} {setting.argument} is {found}, not {wanted}"
    if not clock_seen:
        yield "cannot read the CPU clock"


def _is_cpu_clock(setting: Setting, board: BoardModes) -> bool:
    is_clock = board.parameters[setting.parameter].kind == "CLOCK"
    return is_clock and setting.parameter.startswith("CPU")


def _path(files: MachineFiles, board: BoardModes, setting: Setting) -> str | None:
    """Return the file of `setting` on this kernel, or None."""
    parameter = board.parameters[setting.parameter]
    for argument in (setting.argument, f"{setting.argument}_KNEXT"):
        path = parameter.arguments.get(argument, "")
        if parameter.kind == "HWMON" and path:
            folder, _, name = path.partition(" ")
            path = next(iter(files.find(folder, f"hwmon*/{name.strip()}")), "")
        if path and files.exists(path):
            return path
    return None


def _is_cap(
    found: int, files: MachineFiles, board: BoardModes, setting: Setting, wanted: int
) -> bool:
    """Return whether a value matches a wanted cap.

    The kernel rounds a cap up or down to a frequency step; no cap means the maximum.
    """
    table = _table(files, board, setting)
    if wanted in (-1, 0, NO_CAP):
        caps = [
            other.number or 0
            for model in board.models.values()
            for other in model.settings
            if (other.parameter, other.argument) == (setting.parameter, setting.argument)
        ]
        most = max(table or [cap for cap in caps if cap != NO_CAP], default=0)
        return found in (-1, 0) or found >= most
    below = max((step for step in table if step <= wanted), default=wanted)
    above = min((step for step in table if step >= wanted), default=wanted)
    return found in (wanted, below, above)


def _table(files: MachineFiles, board: BoardModes, setting: Setting) -> list[int]:
    arguments = board.parameters[setting.parameter].arguments
    for argument in ("FREQ_TABLE", "FREQ_TABLE_KNEXT"):
        try:
            return [int(step) for step in files.read(arguments[argument]).split()]
        except (KeyError, OSError, ValueError):
            continue
    return []
