"""Power modes of NVIDIA Jetson boards."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from synergai.errors import NotSupported
from worker_agent.power import switching
from worker_agent.power.controller import PowerMode, Reading, Switch, find_mode, offered
from worker_agent.power.nvpmodel_check import mismatches
from worker_agent.power.nvpmodel_conf import BoardModes, PowerModel, parse_conf
from worker_agent.power.nvpmodel_program import BoardPrograms, ProgramFailed
from worker_agent.power.switching import Patience

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.files import Files

CONF: Final = "/etc/nvpmodel.conf"
_TPC_MASK: Final = "/sys/devices/gpu.0/tpc_pg_mask"
_BOUNDS: Final = ("MIN_FREQ", "MAX_FREQ")
_CLOCKS_STORE: Final = "/run/synergai-clocks.conf"

_log = logging.getLogger(__name__)


class Nvpmodel:
    """The modes of ``/etc/nvpmodel.conf``, switched by NVIDIA's own program.

    A mode is reported only if ``nvpmodel -q`` names it and the cores, the caps of the clocks and
    the GPU's mask are as the file says for it.

    Args:
        files: the machine.
        modes: names of those to offer; none means all.
        programs: the board's programs.
        patience: how long the board is given to follow.

    Raises:
        NotSupported: on construction, if the board has no such file or it is damaged.
        InvalidInput: on construction, if a mode is not in it.
    """

    def __init__(
        self,
        files: Files,
        modes: Sequence[str] = (),
        *,
        programs: BoardPrograms | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._files = files
        self._programs = programs or BoardPrograms(files)
        self._patience = patience or Patience()
        self._names = tuple(modes)
        self._board = self._read_conf()
        offered(self.modes(), self._names)

    def modes(self) -> Sequence[PowerMode]:
        """The modes in the order of the board's numbers."""
        in_force = self._tpc_mask()
        modes = [
            PowerMode(
                name=model.name,
                cores=sum(model.online.values()),
                max_mhz=model.max_khz / 1000,
                budget_w=model.budget_w,
                number=model.number,
                refused="" if model.tpc_mask == in_force else _needs_reboot(model, in_force),
            )
            for _, model in sorted(self._board.models.items())
        ]
        return offered(modes, self._names)

    def read(self) -> Reading:
        """The mode that the program names, if the board's files bear it out."""
        try:
            number, name = self._programs.mode()
        except ProgramFailed as error:
            return Reading("", str(error))
        model = self._board.models.get(number)
        if model is None or model.name != name:
            return Reading("", f"nvpmodel names mode {number} {name}, which {CONF} does not have")
        if wrong := mismatches(self._files, self._board, model):
            return Reading("", f"nvpmodel names {name}, but {'; '.join(wrong)}")
        return Reading(name)

    def switch(self, mode: str) -> Switch:
        """Switch without a reboot; see `PowerController.switch`."""
        found = find_mode(self.modes(), mode)
        return switching.switch(
            found.name, read=self.read, apply=self._apply, patience=self._patience
        )

    def close(self) -> None:
        """Leave the board in the mode that it is in."""

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
        """Whether ``jetson_clocks`` holds everything at its highest clock.

        Seen at the GPU: some modes pin the cores by themselves, but none the GPU.
        """
        gpu = self._board.parameters.get("GPU")
        if gpu is None or not self._programs.has_clocks():
            return False
        for kernel in ("", "_KNEXT"):
            bounds = [gpu.arguments.get(f"{bound}{kernel}", "") for bound in _BOUNDS]
            with contextlib.suppress(OSError, ValueError):
                lowest, highest = (int(self._files.read(bound)) for bound in bounds)
                return lowest == highest
        return False

    def _unpin(self) -> None:
        # Without a stored state there is nothing to restore: the mode sets its own lower bounds.
        if self._files.exists(_CLOCKS_STORE):
            self._clocks("--restore", str(self._files.path(_CLOCKS_STORE)))

    def _pin(self) -> None:
        store = self._files.path(_CLOCKS_STORE)
        with contextlib.suppress(OSError):
            store.unlink()  # or it would ask whether to overwrite it
        self._clocks("--store", str(store))
        self._clocks()

    def _clocks(self, *arguments: str) -> None:
        try:
            self._programs.clocks(*arguments)
        except ProgramFailed as error:
            _log.warning("%s", error)

    def _tpc_mask(self) -> int:
        """The GPU's mask in force; where it cannot be read, that of the mode in force."""
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
            raise NotSupported(f"{CONF} cannot be read: {error.strerror}") from error


def _needs_reboot(model: PowerModel, in_force: int) -> str:
    return (
        f"it needs a reboot, for another part of the GPU to be powered (mask {model.tpc_mask} "
        f"instead of {in_force}); choose it with nvpmodel -m {model.number} in a maintenance window"
    )
