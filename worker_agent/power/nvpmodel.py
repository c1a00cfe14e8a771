"""Power modes of NVIDIA Jetson boards."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from synergai.errors import NotSupported
from worker_agent.power import switching
from worker_agent.power.controller import PowerMode, Reading, SwitchResult, find_mode, select_modes
from worker_agent.power.nvpmodel_check import mismatches
from worker_agent.power.nvpmodel_conf import BoardModes, PowerModel, parse_conf
from worker_agent.power.nvpmodel_program import BoardPrograms, ProgramFailed
from worker_agent.power.switching import SwitchTiming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.files import MachineFiles

CONF: Final = "/etc/nvpmodel.conf"
_TPC_MASK: Final = "/sys/devices/gpu.0/tpc_pg_mask"
_BOUNDS: Final = ("MIN_FREQ", "MAX_FREQ")
_CLOCKS_STORE: Final = "/run/synergai-clocks.conf"

_log = logging.getLogger(__name__)


class NvpmodelController:
    """Controller of the modes in ``/etc/nvpmodel.conf``, switched with NVIDIA's ``nvpmodel``.

    A mode is in force only if ``nvpmodel -q`` names it and the online cores, clock caps
    and GPU mask match its definition in the file.
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
        modes = [
            PowerMode(
                name=model.name,
                cores=sum(model.online.values()),
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
        if wrong := mismatches(self._files, self._board, model):
            return Reading("", f"nvpmodel reports {name}, but {'; '.join(wrong)}")
        return Reading(name)

    def switch(self, mode: str) -> SwitchResult:
        """Switch without a reboot; see `PowerController.switch`."""
        found = find_mode(self.modes(), mode)
        return switching.switch(found.name, read=self.read, apply=self._apply, timing=self._timing)

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
        if gpu is None or not self._programs.has_jetson_clocks():
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
        model = self._board.models.get(number)
        return model.tpc_mask if model else 0

    def _read_conf(self) -> BoardModes:
        try:
            return parse_conf(self._files.read(CONF), CONF)
        except OSError as error:
            raise NotSupported(f"cannot read {CONF}: {error.strerror}") from error


def _needs_reboot(model: PowerModel, in_force: int) -> str:
    return (
        f"needs a reboot, because it changes the powered parts of the GPU (mask {model.tpc_mask} "
        f"instead of {in_force}); run nvpmodel -m {model.number} in a maintenance window"
    )
