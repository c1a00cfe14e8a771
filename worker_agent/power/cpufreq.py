"""CPU clock and core count as power modes, through Linux cpufreq and CPU hotplug."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, NotSupported
from worker_agent.power.controller import (
    PowerMode,
    Reading,
    SwitchResult,
    SwitchTiming,
    find_mode,
    switch,
)
from worker_agent.power.files import MachineFiles, parse_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_CPU: Final = "/sys/devices/system/cpu"
_NAME: Final = re.compile(r"(\d+)x(\d+)mhz")
_TOLERANCE_MHZ: Final = 100
"""The kernel rounds a cap to a frequency step."""


class CpuFrequencyController:
    """Controller with modes such as ``4x1200mhz``: four cores online, capped at 1.2 GHz."""

    def __init__(
        self, files: MachineFiles, modes: Sequence[str] = (), *, timing: SwitchTiming | None = None
    ) -> None:
        self._files = files
        self._timing = timing or SwitchTiming()
        self._cores = len(files.find(_CPU, "cpu[0-9]*"))
        try:
            self._lowest_khz = int(files.read(f"{_CPU}/cpu0/cpufreq/cpuinfo_min_freq"))
            self._highest_khz = int(files.read(f"{_CPU}/cpu0/cpufreq/cpuinfo_max_freq"))
            self._initial_khz = self._caps()
        except (OSError, ValueError) as error:
            raise NotSupported(
                f"cannot set the CPU clock: {error}; most virtual machines have none to set: use "
                "--power cgroup instead"
            ) from error
        self._steps_khz = self._steps()
        self._modes = tuple(self._mode(name) for name in modes or self._names())

    def modes(self) -> Sequence[PowerMode]:
        """Return the selected modes."""
        return self._modes

    def read(self) -> Reading:
        """Return the mode that matches the online cores and their clock caps."""
        try:
            caps = self._caps()
            near = [mode for mode in self._modes if self._matches(mode, caps)]
        except (OSError, ValueError) as error:
            return Reading("", f"cannot read the state of the cores: {error}")
        highest = max(caps.values(), default=0) / 1000
        if near:
            return Reading(min(near, key=lambda mode: abs(mode.max_mhz - highest)).name)
        return Reading("", f"{len(caps)} cores are online, at up to {highest:.0f} MHz")

    def switch(self, mode: str) -> SwitchResult:
        """Set the clock caps and the online cores; see `PowerController.switch`."""
        found = find_mode(self._modes, mode)
        return switch(found.name, read=self.read, apply=self._apply, timing=self._timing)

    def close(self) -> None:
        """Restore the initial cores and clock caps."""
        for core in self._initial_khz:
            self._set_online(core, online=True)
        for core, cap in self._initial_khz.items():
            self._files.write(f"{_CPU}/cpu{core}/cpufreq/scaling_max_freq", str(cap))

    def _apply(self, name: str) -> str:
        mode = find_mode(self._modes, name)
        try:
            for core in range(mode.cores):
                self._set_online(core, online=True)
                cap = round(self._expected(core, mode) * 1000)
                self._files.write(f"{_CPU}/cpu{core}/cpufreq/scaling_max_freq", str(cap))
            for core in range(mode.cores, self._cores):
                self._set_online(core, online=False)
        except (OSError, ValueError) as error:
            return str(error)
        return ""

    def _matches(self, mode: PowerMode, caps: Mapping[int, int]) -> bool:
        return mode.cores == len(caps) and all(
            abs(cap / 1000 - self._expected(core, mode)) <= _TOLERANCE_MHZ
            for core, cap in caps.items()
        )

    def _set_online(self, core: int, *, online: bool) -> None:
        path = f"{_CPU}/cpu{core}/online"
        # The first core usually cannot be taken offline and has no such file.
        if self._files.exists(path) and self._files.read(path) != str(int(online)):
            self._files.write(path, str(int(online)))

    def _expected(self, core: int, mode: PowerMode) -> float:
        """Return the cap of `core` in MHz; cores may differ in their maximum clock."""
        highest = int(self._files.read(f"{_CPU}/cpu{core}/cpufreq/cpuinfo_max_freq"))
        return min(mode.max_mhz, highest / 1000)

    def _caps(self) -> dict[int, int]:
        return {
            core: int(self._files.read(f"{_CPU}/cpu{core}/cpufreq/scaling_max_freq"))
            for core in parse_cpus(self._files.read(f"{_CPU}/online"))
        }

    def _steps(self) -> list[int]:
        with contextlib.suppress(OSError, ValueError):  # not all drivers list them
            listed = self._files.read(f"{_CPU}/cpu0/cpufreq/scaling_available_frequencies")
            return [int(step) for step in listed.split()]
        return []

    def _mode(self, name: str) -> PowerMode:
        found = _NAME.fullmatch(name)
        if found is None:
            raise InvalidInput(f"{name!r} is not a mode; expected a name such as 4x1200mhz")
        cores, mhz = int(found[1]), int(found[2])
        lowest, highest = self._lowest_khz / 1000, self._highest_khz / 1000
        if not (1 <= cores <= self._cores and int(lowest) <= mhz <= round(highest)):
            raise InvalidInput(
                f"{name!r} is out of range: this machine has {self._cores} cores "
                f"with {lowest:.0f} to {highest:.0f} MHz"
            )
        return PowerMode(name=name, cores=cores, max_mhz=float(mhz))

    def _names(self) -> Iterator[str]:
        for cores in sorted({self._cores, max(1, self._cores // 2)}, reverse=True):
            for fraction in (1.0, 0.75, 0.5):
                khz = self._nearest_step(max(self._lowest_khz, fraction * self._highest_khz))
                yield f"{cores}x{round(khz / 1000)}mhz"

    def _nearest_step(self, khz: float) -> float:
        return min(self._steps_khz, key=lambda step: abs(step - khz), default=khz)
